//! Styles of the page and of single pictures, in light and dark.

/// Colours as variables. The dark set has the same hues, lighter.
pub const COLOURS: &str = "
:root{--page:#f7f7f5;--card:#ffffff;--ink:#1c1e21;--soft:#5f656d;--grid:#e4e4e0;--line:#c9c9c4;
--good:#1a7f4b;--bad:#b3261e;--fault:#b3261e;
--s0:#2563c9;--s1:#c2571a;--s2:#1f8a63;--s3:#8a4fc0;--s4:#b0286f;--s5:#0b7f9c;--s6:#8a6d12;--s7:#5c6670}
@media (prefers-color-scheme:dark){:root{--page:#15171a;--card:#1e2125;--ink:#eceef0;--soft:#a3abb5;
--grid:#30343a;--line:#4a5058;--good:#62d296;--bad:#ff8f86;--fault:#ff8f86;
--s0:#7fb0ff;--s1:#f2a065;--s2:#5fd0a4;--s3:#c6a0f2;--s4:#f288bd;--s5:#60cbe6;--s6:#dcc062;--s7:#b4bcc6}}";

/// Styles of charts.
pub const CHART: &str = "
svg{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;display:block}
svg text{fill:var(--soft)}svg .title{fill:var(--ink);font-weight:600;font-size:14px}
.grid{stroke:var(--grid)}.axis{stroke:var(--line)}
.curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.thin{stroke-width:1;stroke-opacity:.22}.curve:hover{stroke-width:3.5;stroke-opacity:1}
.fault{fill:var(--fault);fill-opacity:.1}.moment{stroke:var(--fault);stroke-width:1.5;stroke-dasharray:4 3}
.fault:hover{fill-opacity:.25}
.mark{stroke:var(--card);stroke-width:1.5}.bar:hover,.cell:hover{opacity:.75}";

/// Styles of the page.
pub const PAGE: &str = "
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);line-height:1.45;
font:15px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:24px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:16px;margin:0 0 10px}
p{margin:0 0 8px}.soft{color:var(--soft)}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0}
.tile{background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:10px 16px;min-width:120px}
.tile b{display:block;font-size:20px;font-weight:600;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(520px,100%),1fr));gap:16px}
.card{background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:16px;min-width:0}
.wide{grid-column:1/-1}.scroll{overflow-x:auto}
svg{width:100%;height:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th{color:var(--soft);font-weight:500;text-align:left;border-bottom:1px solid var(--line)}
th,td{padding:5px 10px 5px 0;vertical-align:top;overflow-wrap:anywhere}
td{border-bottom:1px solid var(--grid)}
.k{white-space:nowrap}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.good{color:var(--good);font-weight:600;white-space:nowrap}
.bad{color:var(--bad);font-weight:600;white-space:nowrap}";
