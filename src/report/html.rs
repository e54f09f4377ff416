//! A report as one HTML page: facts, notes, plots and tables that sort and filter, with nothing loaded from elsewhere.
//!
//! The page follows the reader's light or dark scheme, and is whole without its script: rows stand in the order given.
//! It knows nothing of what it shows. Plots are in [`super::plot`].

use std::fmt::Write as _;

/// A page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// What it is about, in a sentence or two.
    pub lead: String,
    /// Label and value, shown as cards; a value that is bad news is marked.
    pub facts: Vec<Fact>,
    /// Paragraphs below the facts.
    pub notes: Vec<String>,
    /// Figures: caption, and an SVG of [`super::plot`].
    pub figures: Vec<(String, String)>,
    /// Tables.
    pub tables: Vec<Table>,
}

/// A number that matters.
#[derive(Clone, Debug)]
pub struct Fact {
    /// What it is.
    pub label: String,
    /// As it is shown.
    pub value: String,
    /// Whether it is bad news.
    pub is_bad: bool,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Its heading.
    pub heading: String,
    /// How to read it.
    pub lead: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows: a cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// What it holds, said on hovering.
    pub help: &'static str,
}

/// A cell.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Words; sorted as text.
    Text(String),
    /// A number and how it is shown; sorted by the number.
    Number(f64, String),
}

/// Text for HTML, in content and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1d232b; --soft: #5b6572; --paper: #ffffff; --card: #f4f6f8; --line: #dbe0e6;
  --born: #c2500a; --error: #1f6fb2; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa5b3; --paper: #14181d; --card: #1e242b;
  --line: #343c46; --born: #f2894a; --error: #64aee8; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 92rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p { margin: .3rem 0; max-width: 60rem; color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: .7rem; margin: 1.2rem 0; }
.fact { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .55rem .9rem; }
.fact b { display: block; font-size: 1.15rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.fact span { color: var(--soft); font-size: .85rem; }
.fact.bad b { color: var(--bad); }
figure { margin: 1.2rem 0 0; max-width: 66rem; }
figcaption { font-weight: 600; margin-bottom: .2rem; }
svg { width: 100%; height: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--soft); }
svg .limit { stroke: var(--bad); stroke-dasharray: 6 4; }
svg circle { opacity: .8; }
svg .area { fill: var(--error); opacity: .55; } svg .moment { fill: transparent; }
svg .moment:hover, svg .moment.at { fill: var(--born); opacity: .35; }
svg .part rect { stroke: var(--card); } svg .part text { fill: #fff; pointer-events: none; }
.readout { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .55rem .9rem;
  margin: .4rem 0 0; min-height: 15em; overflow-x: auto; font: .82rem/1.45 ui-monospace, monospace; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; margin-top: .6rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .35rem .7rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
td:first-child { font-family: ui-monospace, monospace; }
td { max-width: 26rem; overflow: hidden; text-overflow: ellipsis; }
.note { white-space: pre-line; color: var(--ink); }
th { background: var(--card); cursor: pointer; user-select: none; vertical-align: bottom; }
th button { all: unset; cursor: pointer; font-weight: 600; } th button:focus-visible { outline: 2px solid var(--error); }
th[aria-sort=ascending] button::after { content: ' \\25B2'; } th[aria-sort=descending] button::after { content: ' \\25BC'; }
.n { text-align: right; }
tbody tr:hover { background: var(--card); } tbody tr:last-child td { border-bottom: 0; }
input { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .3rem .6rem; margin-top: .6rem; width: 22rem; max-width: 100%; }
";

const SCRIPT: &str = "
for (const section of document.querySelectorAll('section')) {
  const body = section.querySelector('tbody'), heads = [...section.querySelectorAll('th')];
  heads.forEach((head, at) => head.addEventListener('click', () => {
    const down = head.getAttribute('aria-sort') !== 'descending';
    heads.forEach(other => other.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const key = row => { const cell = row.cells[at]; return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v); };
    const order = (a, b) => typeof a === 'number' ? a - b : a.localeCompare(b, undefined, { numeric: true });
    const rows = [...body.rows].map(row => [key(row), row]).sort((a, b) => down ? order(b[0], a[0]) : order(a[0], b[0]));
    body.append(...rows.map(pair => pair[1]));
  }));
  const filter = section.querySelector('input');
  filter.hidden = false;
  filter.addEventListener('input', () => {
    const wanted = filter.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
for (const readout of document.querySelectorAll('.readout')) {
  const figure = readout.closest('figure');
  figure.addEventListener('pointerover', event => {
    const moment = event.target.closest('.moment');
    if (!moment) return;
    figure.querySelectorAll('.at').forEach(other => other.classList.remove('at'));
    moment.classList.add('at');
    readout.textContent = moment.querySelector('title').textContent;
  });
}
";

impl Page {
    /// The page's text.
    pub fn render(&self) -> String {
        let title = escape(&self.title);
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
             <body>\n<h1>{title}</h1>\n<p>{}</p>\n<div class=\"facts\">\n",
            escape(&self.lead)
        );
        for Fact { label, value, is_bad } in &self.facts {
            let class = if *is_bad { "fact bad" } else { "fact" };
            let (label, value) = (escape(label), escape(value));
            let _ = writeln!(out, "<div class=\"{class}\"><b>{value}</b><span>{label}</span></div>");
        }
        out.push_str("</div>\n");
        for note in &self.notes {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(note));
        }
        for (caption, svg) in &self.figures {
            let _ = writeln!(out, "<figure><figcaption>{}</figcaption>{svg}</figure>", escape(caption));
        }
        self.tables.iter().for_each(|table| table.render(&mut out));
        let _ = write!(out, "<script>{SCRIPT}</script>\n</body>\n</html>\n");
        out
    }
}

impl Table {
    fn render(&self, out: &mut String) {
        let (heading, lead) = (escape(&self.heading), escape(&self.lead));
        let _ = write!(
            out,
            "<section>\n<h2>{heading}</h2>\n<p>{lead}</p>\n<input type=\"search\" placeholder=\"show rows with …\" \
             aria-label=\"show rows with\" hidden>\n<div class=\"scroll\"><table>\n<thead><tr>"
        );
        let is_number = |place: usize| matches!(self.rows.first().map(|row| &row[place]), Some(Cell::Number(..)));
        for (place, Column { title, help }) in self.columns.iter().enumerate() {
            let class = if is_number(place) { " class=\"n\"" } else { "" };
            let (title, help) = (escape(title), escape(help));
            let _ = write!(out, "<th{class} title=\"{help}\"><button>{title}</button></th>");
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            out.push_str("<tr>");
            for cell in row {
                let _ = match cell {
                    // A long text is cut to its column; hovering says it all.
                    Cell::Text(text) if text.chars().count() > 40 => {
                        write!(out, "<td title=\"{0}\">{0}</td>", escape(text))
                    }
                    Cell::Text(text) => write!(out, "<td>{}</td>", escape(text)),
                    Cell::Number(value, shown) => {
                        let value = if value.is_infinite() { "Infinity".to_string() } else { value.to_string() };
                        write!(out, "<td class=\"n\" data-v=\"{value}\">{}</td>", escape(shown))
                    }
                };
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div>\n</section>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_and_loads_nothing() {
        let page = Page {
            title: "a <module> & more".to_string(),
            lead: "lead".to_string(),
            facts: vec![Fact { label: "error".to_string(), value: "1e-3".to_string(), is_bad: true }],
            notes: vec!["a note".to_string()],
            figures: vec![("figure".to_string(), "<svg></svg>".to_string())],
            tables: vec![Table {
                heading: "rows".to_string(),
                lead: String::new(),
                columns: vec![Column { title: "name", help: "its \"name\"" }, Column { title: "error", help: "" }],
                rows: vec![vec![Cell::Text("<x>".to_string()), Cell::Number(f64::INFINITY, "inf".to_string())]],
            }],
        };
        let html = page.render();
        for expected in [
            "<title>a &lt;module&gt; &amp; more</title>",
            "<div class=\"fact bad\"><b>1e-3</b><span>error</span></div>",
            "title=\"its &quot;name&quot;\"",
            "<td>&lt;x&gt;</td><td class=\"n\" data-v=\"Infinity\">inf</td>",
            "</html>\n",
        ] {
            assert!(html.contains(expected), "{expected} is not in\n{html}");
        }
        for elsewhere in ["http", "src=", "href=", "@import", "url("] {
            assert!(!html.contains(elsewhere), "{elsewhere} in\n{html}");
        }
    }
}
