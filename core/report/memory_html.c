/* bt_plan_svg, bt_plan_html: the memory map as files. The page is the same picture with a table of
 * the largest tensors, sorted by a click on a column's head; its script is its own, some lines. */
#include <stdlib.h>
#include <string.h>

#include "core/base/files.h"
#include "core/report/advice.h"
#include "core/report/memory_map.h"
#include "core/report/plan_report.h"
#include "core/report/svg.h"

enum { MOST_ROWS = 100 };

static const char page_style[] =
    "body{margin:24px;font:14px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;"
    "color:#111827;background:#ffffff}\n"
    "svg{max-width:100%;height:auto}\n"
    "table{border-collapse:collapse;margin-top:16px}\n"
    "th,td{padding:3px 14px 3px 0;text-align:left;border-bottom:1px solid #e5e7eb;"
    "white-space:nowrap}\n"
    "th{cursor:pointer;user-select:none}th:hover{text-decoration:underline}\n"
    "th[aria-sort=descending]::after{content:' \\2193'}th[aria-sort=ascending]::after{content:' "
    "\\2191'}\n"
    ".n{text-align:right;font-variant-numeric:tabular-nums}\n"
    "tbody tr:hover{background:#f1f5f9}\n"
    "#detail{min-height:1.5em;color:#374151}\n"
    "@media (prefers-color-scheme:dark){body{color:#e5e7eb;background:#10151d}\n"
    "th,td{border-color:#2a323d}tbody tr:hover{background:#1b2430}#detail{color:#c3cad4}}\n";

/* Sorting, the line of details, and the tensor of a table's row outlined in the map. */
static const char page_script[] =
    "const body=document.querySelector('tbody'),heads=[...document.querySelectorAll('th')];\n"
    "heads.forEach((h,c)=>h.addEventListener('click',()=>{\n"
    "const up=h.getAttribute('aria-sort')==='descending';\n"
    "heads.forEach(x=>x.removeAttribute('aria-sort'));\n"
    "h.setAttribute('aria-sort',up?'ascending':'descending');\n"
    "const key=r=>{const d=r.cells[c],v=d.dataset.v;return v===undefined?d.textContent:+v};\n"
    "const order=(a,b)=>{const x=key(a),y=key(b);\n"
    "return typeof x==='number'?x-y:x.localeCompare(y)};\n"
    "[...body.rows].sort((a,b)=>up?order(a,b):order(b,a)).forEach(r=>body.append(r));\n"
    "}));\n"
    "const detail=document.getElementById('detail');\n"
    "document.querySelectorAll('svg rect').forEach(r=>{const t=r.querySelector('title');\n"
    "if(!t)return;\n"
    "r.addEventListener('mouseenter',()=>{r.classList.add('hot');\n"
    "detail.textContent=t.textContent.replaceAll('\\n',' \\u00b7 ')});\n"
    "r.addEventListener('mouseleave',()=>r.classList.remove('hot'));\n"
    "});\n"
    "for(const r of body.rows){\n"
    "const x=document.querySelector(`svg rect[data-i=\"${r.dataset.i}\"]`);\n"
    "if(!x)continue;\n"
    "r.addEventListener('mouseenter',()=>x.classList.add('hot'));\n"
    "r.addEventListener('mouseleave',()=>x.classList.remove('hot'));\n"
    "}\n";

/* A tensor of the dynamic region, or (id 0) a parameter with gradient and moments. */
typedef struct row {
    bti_tid id;
    int32_t parameter;
    uint64_t bytes;
} row;

static int by_bytes(const void *a, const void *b) {
    const row *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->id != y->id ? x->id - y->id : x->parameter - y->parameter;
}

static bt_status collect(const bti_session *s, row **out, size_t *count) {
    const bti_program *p = s->plan->step;
    const bti_params *t = &s->model->params;
    row *r = bti_alloc((size_t)(p->tensors + t->count) + 1, sizeof *r);
    if (r == NULL) return BT_ENOMEM;
    size_t n = 0;
    for (bti_tid i = 1; i <= p->tensors; i++)
        if (bti_map_is_drawn(&p->tensor[i])) r[n++] = (row){i, 0, p->tensor[i].bytes};
    for (int32_t i = 0; i < t->count; i++)
        r[n++] = (row){0, i, bti_param_state(t, i, s->plan->choice.moments)};
    qsort(r, n, sizeof *r, by_bytes);
    *out = r;
    *count = n < MOST_ROWS ? n : MOST_ROWS;
    return BT_OK;
}

static void number(bti_text *t, long long v) {
    bti_text_add(t, "<td class=\"n\" data-v=\"%lld\">%lld</td>", v, v);
}

static void put_row(bti_text *t, const bti_session *s, const row *r) {
    const bti_tensor *x = &s->plan->step->tensor[r->id];
    const bti_param *q = &s->model->params.param[r->parameter];
    int host = s->plan->choice.moments == BTI_MOMENTS_HOST;
    char bytes[32];
    bti_format_bytes(r->bytes, bytes);
    bti_text_add(t, "<tr data-i=\"%d\"><td>", r->id);
    bti_svg_escape(t, r->id ? x->name : q->name);
    int32_t layer = r->id ? bti_map_layer(s->plan->step, r->id) : -1;
    if (layer >= 0) bti_text_add(t, ", layer %d", layer);
    bti_text_add(t, "</td><td>%s%s</td>",
                 r->id  ? bti_map_kind_name[bti_map_kind_of(s->plan->step, r->id)]
                 : host ? "weight and gradient"
                        : "weight, gradient and two moments",
                 r->id && bti_map_is_again(s->plan->step, r->id) ? ", made again" : "");
    bti_text_add(t, "<td>%lld x %lld</td><td class=\"n\" data-v=\"%llu\">%s</td>",
                 (long long)(r->id ? x->rows : q->rows), (long long)(r->id ? x->cols : q->cols),
                 (unsigned long long)r->bytes, bytes);
    number(t, r->id ? x->first : 0);
    number(t, r->id ? x->last : s->plan->step->ops - 1);
    bti_text_add(t, "</tr>\n");
}

static bt_status put_page(bti_text *t, const bti_session *s) {
    static const char *const head[] = {"tensor", "kind", "shape", "bytes", "first op", "last op"};
    row *r;
    size_t count;
    BT_TRY(collect(s, &r, &count));
    bti_text_add(t, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    bti_text_add(t, "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Memory map: ");
    bti_svg_escape(t, s->dev->info.name);
    bti_text_add(t, "</title>\n<style>\n%s</style>\n</head>\n<body>\n", page_style);
    bti_map_svg(t, s);
    bti_text_add(t, "<p id=\"detail\">Point at a tensor.</p>\n");
    bti_text_add(t, "<table>\n<caption hidden>the largest tensors</caption>\n<thead><tr>");
    for (int i = 0; i < 6; i++)
        bti_text_add(t, "<th%s%s>%s</th>", i > 2 ? " class=\"n\"" : "",
                     i == 3 ? " aria-sort=\"descending\"" : "", head[i]);
    bti_text_add(t, "</tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < count; i++) put_row(t, s, &r[i]);
    bti_text_add(t, "</tbody>\n</table>\n<script>\n%s</script>\n</body>\n</html>\n", page_script);
    bti_free(r);
    return BT_OK;
}

static bt_status write_text(bti_text *t, const char *path) {
    char *text;
    BT_TRY(bti_text_take(t, &text));
    bt_status status = bti_file_write(path, text, strlen(text));
    bti_free(text);
    return status;
}

bt_status bt_plan_svg(const bt_plan *plan, const char *path) {
    bti_text t = {0};
    bti_map_svg(&t, plan->session);
    return write_text(&t, path);
}

bt_status bt_plan_html(const bt_plan *plan, const char *path) {
    bti_text t = {0};
    BT_TRY(put_page(&t, plan->session));
    return write_text(&t, path);
}
