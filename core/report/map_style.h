/* How the memory map looks, on light and dark pages. Colours of kinds after Okabe and Ito (2008),
 * which people with any colour vision tell apart. */
#ifndef BANTAM_REPORT_MAP_STYLE_H
#define BANTAM_REPORT_MAP_STYLE_H

static const char bti_map_style[] =
    "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#374151}\n"
    ".page{fill:#ffffff}.title{font-size:18px;font-weight:600;fill:#111827}\n"
    ".sub{font-size:13px}.head{font-weight:600;fill:#111827}\n"
    ".grid{stroke:#e5e7eb}.axis{stroke:#6b7280}.panel{fill:#f8fafc}\n"
    ".part{stroke:#6b7280;stroke-width:.75;stroke-dasharray:1 3}\n"
    ".peak{fill:#b91c1c}\n"
    ".wedge{fill:#94a3b8;fill-opacity:.14}\n"
    ".budget{stroke:#b91c1c;stroke-width:2}.over{fill:#b91c1c;font-weight:600}\n"
    ".in{pointer-events:none}.on{fill:#111827}\n"
    ".tensors rect{stroke:#ffffff;stroke-width:.3}\n"
    ".again{fill-opacity:.5}.tensors .thin{stroke:none}\n"
    ".ki{fill:#0072b2}.ka{fill:#56b4e9}.kf{fill:#e69f00}.kn{fill:#2aa884}\n"
    ".kg{fill:#e0703a}.kl{fill:#cc79a7}.ks{fill:#9ca3af}.ko{fill:#d9c84b}\n"
    ".bw{fill:#334155}.bg{fill:#475569}.bm{fill:#64748b}.bv{fill:#7c8ba1}\n"
    ".bt{fill:#a3b0c2}.bd{fill:#bfdbfe}.br{fill:#d6dbe3}\n"
    ".on-bw text,.on-bg text,.on-bm text,.on-bv text{fill:#ffffff}\n"
    ".on-bt text,.on-bd text,.on-br text{fill:#111827}\n"
    "rect.hot{stroke:#111827;stroke-width:2}\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#c3cad4}.page{fill:#10151d}.title,.head{fill:#f3f4f6}\n"
    ".grid{stroke:#2a323d}.axis,.part{stroke:#8b949e}.panel{fill:#161c26}\n"
    ".peak{fill:#f87171}.budget{stroke:#f87171}.over{fill:#f87171}\n"
    ".tensors rect{stroke:#10151d}.on{fill:#0b0f15}\n"
    ".bd{fill:#3b5f8f}.on-bd text{fill:#ffffff}.br{fill:#3a4350}.on-br text{fill:#e5e7eb}\n"
    "rect.hot{stroke:#f3f4f6}\n"
    "}\n";

#endif
