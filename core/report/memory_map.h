/* The memory map of a plan: what lies where, and when. Time (ops of the step) goes across, bytes go
 * up. At the left everything to scale, with the budget as a line; at the right the dynamic region,
 * a rectangle for each tensor. */
#ifndef BANTAM_REPORT_MEMORY_MAP_H
#define BANTAM_REPORT_MEMORY_MAP_H

#include "core/base/text.h"
#include "core/session/session.h"

/* What a tensor is, by colour. */
typedef enum bti_map_kind {
    BTI_MAP_INPUT,
    BTI_MAP_ATTENTION,
    BTI_MAP_FEED_FORWARD,
    BTI_MAP_NORM,
    BTI_MAP_GRADIENT,
    BTI_MAP_LOGITS,
    BTI_MAP_SCRATCH,
    BTI_MAP_OTHER,
    BTI_MAP_KINDS
} bti_map_kind;
extern const char *const bti_map_kind_name[BTI_MAP_KINDS]; /* for people */
extern const char
    *const bti_map_kind_class[BTI_MAP_KINDS]; /* of its rectangle in the style sheet */

/* Of a copy that backward makes: that of the tensor it stands for. */
bti_map_kind bti_map_kind_of(const bti_program *p, bti_tid id);
/* Is tensor `id` a forward tensor that backward makes again? */
int bti_map_is_again(const bti_program *p, bti_tid id);
/* Whose part it is, counted over both stacks; -1: of none. */
int32_t bti_map_layer(const bti_program *p, bti_tid id);
/* Has it a rectangle: bytes in the dynamic region, and an op that touches it? */
int bti_map_is_drawn(const bti_tensor *t);

/* The <svg> element, style sheet inside. */
void bti_map_svg(bti_text *out, const bti_session *s);

#endif
