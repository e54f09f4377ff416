//! A report as one self-contained HTML page: facts, notes, plots, and tables that sort and filter.
//!
//! The page follows the reader's light or dark scheme, and is complete without its script: rows are in the given order.
//! It is independent of what it shows. `maud` builds the markup, so every text is escaped except for `PreEscaped`: the
//! style, the script, and plots, which are in [`super::plot`].

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bf16scope_hlo::words;
use maud::{DOCTYPE, Escaper, Markup, PreEscaped, html};

/// A page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// Its subject, in a sentence or two.
    pub lead: String,
    /// Labels and values, shown as cards; bad values are marked.
    pub facts: Vec<Fact>,
    /// Paragraphs below the facts.
    pub notes: Vec<String>,
    /// Figures: caption, and an SVG of [`super::plot`].
    pub figures: Vec<(String, String)>,
    /// Pictures in rows.
    pub sheets: Vec<Sheet>,
    /// Tables.
    pub tables: Vec<Table>,
}

/// Pictures in rows, a contact sheet.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    /// Its heading.
    pub heading: String,
    /// How to read it.
    pub lead: String,
    /// Its rows.
    pub rows: Vec<SheetRow>,
}

/// A row of pictures.
#[derive(Clone, Debug, Default)]
pub struct SheetRow {
    /// Its title.
    pub title: String,
    /// Remarks on it, a line each.
    pub lines: Vec<String>,
    /// The pictures.
    pub pictures: Vec<Picture>,
}

/// A picture within the page.
#[derive(Clone, Debug)]
pub struct Picture {
    /// A PNG file.
    pub png: Vec<u8>,
    /// Its width in pixels of the page.
    pub width: usize,
    /// The caption below it.
    pub caption: String,
}

/// A key figure.
#[derive(Clone, Debug)]
pub struct Fact {
    /// Its label.
    pub label: String,
    /// Its value as shown.
    pub value: String,
    /// Whether the value is bad.
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
    /// An explanation, shown on hovering.
    pub help: &'static str,
}

/// A cell.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Words; sorted as text.
    Text(String),
    /// A number and its text; sorted by the number.
    Number(f64, String),
}

/// Escapes text for HTML, in content and in attributes between `"`.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    Escaper::new(&mut out).write_str(text).expect("a string takes everything");
    out
}

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1d232b; --soft: #5b6572; --paper: #ffffff; --card: #f4f6f8; --line: #dbe0e6;
  --born: #c2500a; --error: #1f6fb2; --bad: #b3261e; --line1: #0072b2; --line2: #d55e00; --line3: #00795a;
  --line4: #a23b7a; --line5: #1d232b; --line6: #8a6d00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa5b3; --paper: #14181d; --card: #1e242b;
  --line: #343c46; --born: #f2894a; --error: #64aee8; --bad: #ff8a80; --line1: #56b4e9; --line2: #ff9a4d; --line3: #2fc99e;
  --line4: #e29bc4; --line5: #e6eaf0; --line6: #f0e442; } }
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
.row { display: flex; flex-wrap: wrap; gap: .8rem; align-items: flex-start; border-bottom: 1px solid var(--line);
  padding: .7rem 0; }
.row .about { width: 18rem; overflow-wrap: anywhere; font-size: .85rem; } .row .about b { font-weight: 600; }
.row .shot { font-size: .75rem; color: var(--soft); text-align: center; max-width: 12rem; }
.row img { display: block; image-rendering: pixelated; border: 1px solid var(--line); margin: 0 auto .2rem; }
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
    /// The page as HTML.
    pub fn render(&self) -> String {
        let page = html! {
            (DOCTYPE) "\n"
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                "\n"
                body {
                    h1 { (self.title) }
                    p { (self.lead) }
                    div.facts {
                        @for fact in &self.facts {
                            div.fact.bad[fact.is_bad] { b { (fact.value) } span { (fact.label) } }
                        }
                    }
                    @for note in &self.notes {
                        p.note { (note) }
                    }
                    @for (caption, svg) in &self.figures {
                        figure { figcaption { (caption) } (PreEscaped(svg)) }
                    }
                    @for sheet in &self.sheets {
                        (sheet.markup())
                    }
                    @for table in &self.tables {
                        (table.markup())
                    }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
            "\n"
        };
        // Names come from untrusted files: characters that would change the writing direction, or be dropped, are made
        // visible.
        words::visible(&page.into_string()).into_owned()
    }
}

impl Sheet {
    fn markup(&self) -> Markup {
        html! {
            "\n"
            div.sheet {
                h2 { (self.heading) }
                p { (self.lead) }
                @for row in &self.rows {
                    "\n"
                    div.row {
                        div.about {
                            b { (row.title) }
                            @for line in &row.lines { div { (line) } }
                        }
                        @for picture in &row.pictures {
                            div.shot {
                                img src={ "data:image/png;base64," (BASE64.encode(&picture.png)) } width=(picture.width)
                                    alt=(picture.caption);
                                (picture.caption)
                            }
                        }
                    }
                }
            }
        }
    }
}

impl Table {
    fn markup(&self) -> Markup {
        let is_number = |place: usize| matches!(self.rows.first().map(|row| &row[place]), Some(Cell::Number(..)));
        html! {
            "\n"
            section {
                h2 { (self.heading) }
                p { (self.lead) }
                input type="search" placeholder="show rows with …" aria-label="show rows with" hidden;
                div.scroll {
                    table {
                        thead {
                            tr {
                                @for (place, column) in self.columns.iter().enumerate() {
                                    th class=[is_number(place).then_some("n")] title=(column.help) {
                                        button { (column.title) }
                                    }
                                }
                            }
                        }
                        tbody {
                            @for row in &self.rows {
                                "\n"
                                tr { @for cell in row { (cell.markup()) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Longer texts are cut to their column; hovering shows all of them.
const MAX_TEXT: usize = 40;

impl Cell {
    fn markup(&self) -> Markup {
        match self {
            Cell::Text(text) => {
                let is_long = text.chars().count() > MAX_TEXT;
                html! { td title=[is_long.then_some(text)] { (text) } }
            }
            Cell::Number(value, shown) => {
                let value = if value.is_infinite() { "Infinity".to_string() } else { value.to_string() };
                html! { td.n data-v=(value) { (shown) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_and_loads_nothing() {
        let page = Page {
            sheets: Vec::new(),
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
        let named = Page { title: "a\0b\x1bc\u{202e}d".to_string(), ..Page::default() }.render();
        assert!(named.contains(r"<title>a\x00b\x1bc\u{202e}d</title>"), "{named}");
        for expected in [
            "<title>a &lt;module&gt; &amp; more</title>",
            "<div class=\"fact bad\"><b>1e-3</b><span>error</span></div>",
            "title=\"its &quot;name&quot;\"",
            "<td>&lt;x&gt;</td><td class=\"n\" data-v=\"Infinity\">inf</td>",
            "<th title=\"its &quot;name&quot;\"><button>name</button></th><th class=\"n\" title=\"\">",
            "aria-label=\"show rows with\" hidden>",
            "<figcaption>figure</figcaption><svg></svg></figure>",
            "</html>\n",
        ] {
            assert!(html.contains(expected), "{expected} is not in\n{html}");
        }
        // The script and the style are inserted unchanged, and no text can end them.
        assert!(html.contains("querySelectorAll('section')") && html.contains("th button:focus-visible"), "{html}");
        assert_eq!((html.matches("<script>").count(), html.matches("</style>").count()), (1, 1));
        for elsewhere in ["http", "src=", "href=", "@import", "url("] {
            assert!(!html.contains(elsewhere), "{elsewhere} in\n{html}");
        }
    }
}
