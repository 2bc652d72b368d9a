/* What the files of a session share; nobody else includes this. */
#ifndef BANTAM_SESSION_SESSION_PARTS_H
#define BANTAM_SESSION_SESSION_PARTS_H

#include "core/session/session.h"

/* ---- reading.c ---------------------------------------------------------------------------------
 */

/* Is there text on a side, and does the model read or write it? */
int bti_session_has_text(const bti_session *s, int side);
/* Opens the examples and takes from them what only they say of the model's shape: s->shape and
 * s->vocab. Where they are assumed nothing but tokenisers is read. */
bt_status bti_session_read(bti_session *s);

/* ---- planning.c --------------------------------------------------------------------------------
 */

/* The next device of the list, from *at on, that computes in the run's precision; the caller closes
 * it. *known as in bti_device_next; NULL: tables are not asked. BT_EDEVICE when none is left. */
bt_status bti_session_next_device(const bti_session *s, bti_device_list *l, int *at, int threads,
                                  const char **known, bt_dev **out);
/* Plans on s->dev. While the plan does not fit, goes on to the devices of the list from `at` on;
 * when it fits on none, the first one stays, with its plan or its failure. */
bt_status bti_session_plan_somewhere(bti_session *s, const bti_session_options *o,
                                     bti_device_list *l, int at);

#endif
