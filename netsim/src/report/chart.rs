//! Charts as SVG: curves over an axis, bars, and strips of cells. Pure functions from numbers to
//! text. A tooltip is an SVG `title`.

use super::{RunFault, RunSeries, text::number};
use std::fmt::Write;

/// Size of a chart in its own units, and the margins around the plot.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const BOTTOM: f64 = 44.0;
/// Height of a line of the legend or of the title.
const ROW: f64 = 20.0;
/// Approximate width of a letter.
const LETTER: f64 = 6.8;
/// Number of colours; more curves are drawn thin, in one colour, with their
/// median.
const COLOURS: usize = 8;
/// Largest number of points of a curve: about one for each unit of width.
const POINTS: usize = 600;
/// Number of points of the median of many curves.
const MEDIANS: usize = 120;
/// Largest number of faults that are drawn.
const FAULTS: usize = 200;

/// Text for SVG and HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Other control characters have no form in SVG.
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

/// The form of the values on an axis.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum ChartUnit {
    #[default]
    Number,
    Percent,
    Bytes,
}

impl ChartUnit {
    pub fn write(self, value: f64) -> String {
        match self {
            Self::Number if value.abs() >= 0.01 && value.abs() < 1_000.0 => {
                let text = format!("{value:.2}");
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            Self::Number => number(value),
            Self::Percent => format!("{:.0} %", value * 100.0),
            Self::Bytes => super::text::bytes(value),
        }
    }
}

/// A chart of curves.
#[derive(Default)]
pub struct LineChart<'a> {
    /// Title within the picture; a page has headings of its own.
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub unit: ChartUnit,
    pub series: Vec<RunSeries>,
    pub faults: &'a [RunFault],
    /// Values that the axes must reach.
    pub least_x: f64,
    pub least_y: f64,
    /// Whether the y axis begins at the least value instead of zero.
    pub floating: bool,
    /// Whether a value holds until the next point.
    pub steps: bool,
    /// The distance in x of two points above which no line is drawn between them.
    pub gap: Option<f64>,
}

/// The scale of a plot.
struct Plot {
    top: f64,
    x: [f64; 2],
    y: [f64; 2],
}

impl Plot {
    fn at_x(&self, value: f64) -> f64 {
        let share = (value - self.x[0]) / (self.x[1] - self.x[0]);
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn at_y(&self, value: f64) -> f64 {
        let share = (value - self.y[0]) / (self.y[1] - self.y[0]);
        self.base() - share.clamp(0.0, 1.0) * (HEIGHT - 12.0 - BOTTOM)
    }

    fn base(&self) -> f64 {
        self.top + HEIGHT - BOTTOM
    }
}

/// About five round values between two, and the last one at or above `to`.
fn ticks(from: f64, to: f64) -> Vec<f64> {
    let rough = (to - from) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough);
    let first = (from / step).floor();
    let count = (to / step - first - 1e-9).ceil() as usize;
    (0..=count)
        .map(|tick| (first + tick as f64) * step)
        .collect()
}

impl LineChart<'_> {
    /// The chart; `style` is put into the picture.
    pub fn svg(&self, style: &str) -> String {
        let mut out = String::new();
        let legend = self.legend();
        let title = if self.title.is_empty() {
            0.0
        } else {
            ROW + 4.0
        };
        let top = title + legend.1;
        let height = top + HEIGHT;
        let _ = write!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{}\">",
            escape(&format!("{} {} by {}", self.title, self.y, self.x))
        );
        if !style.is_empty() {
            let card = "<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"var(--card)\"/>";
            let _ = write!(out, "<style>{style}</style>{card}");
        }
        if title > 0.0 {
            let text = escape(self.title);
            let _ = write!(
                out,
                "<text class=\"title\" x=\"{LEFT}\" y=\"20\">{text}</text>"
            );
        }
        let _ = write!(
            out,
            "<g transform=\"translate(0 {title})\">{}</g>",
            legend.0
        );
        let plot = self.plot(top);
        self.axes(&mut out, &plot);
        self.draw_faults(&mut out, &plot);
        for (number, series) in self.series.iter().enumerate() {
            self.curve(&mut out, &plot, self.class(number), series, self.gap);
        }
        if self.series.len() > COLOURS {
            self.curve(&mut out, &plot, ("curve", 1), &self.median(&plot), None);
        }
        out.push_str("</svg>");
        out
    }

    fn class(&self, number: usize) -> (&'static str, usize) {
        if self.series.len() > COLOURS {
            ("curve thin", 0)
        } else {
            ("curve", number)
        }
    }

    /// The legend, in lines as wide as the chart, and its height.
    fn legend(&self) -> (String, f64) {
        let mut out = String::new();
        if self.series.len() < 2 {
            return (out, 0.0);
        }
        if self.series.len() > COLOURS {
            let count = self.series.len();
            for (x, colour, text) in [
                (LEFT, 1, "median".to_owned()),
                (
                    LEFT + 80.0,
                    0,
                    format!("{count} curves; point at one for its name"),
                ),
            ] {
                let (end, label) = (x + 16.0, x + 21.0);
                let _ = write!(
                    out,
                    "<path class=\"curve\" style=\"stroke:var(--s{colour})\" d=\"M{x} 10H{end}\"/>\
                     <text x=\"{label}\" y=\"14\">{text}</text>"
                );
            }
            return (out, ROW);
        }
        let (mut x, mut y) = (LEFT, 14.0);
        for (number, series) in self.series.iter().enumerate() {
            let name: String = series.name.chars().take(40).collect();
            let width = 30.0 + name.chars().count() as f64 * LETTER;
            if x + width > WIDTH && x > LEFT {
                (x, y) = (LEFT, y + ROW);
            }
            let (end, text, middle) = (x + 16.0, x + 21.0, y - 4.0);
            let _ = write!(
                out,
                "<path class=\"curve\" style=\"stroke:var(--s{number})\" d=\"M{x:.1} {middle}H{end:.1}\"/>\
                 <text x=\"{text:.1}\" y=\"{y}\">{}</text>",
                escape(&name)
            );
            x += width;
        }
        (out, y + 6.0)
    }

    fn plot(&self, top: f64) -> Plot {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (mut x, mut y) = (self.least_x, self.least_y);
        let mut low = f64::MAX;
        for point in points().filter(|point| point.iter().all(|it| it.is_finite())) {
            (x, y, low) = (x.max(point[0]), y.max(point[1]), low.min(point[1]));
        }
        let low = if self.floating && low < y { low } else { 0.0 };
        let x = if x > 0.0 { x } else { 1.0 };
        let marks = ticks(low, if y > low { y } else { low + 1.0 });
        Plot {
            top,
            x: [0.0, x],
            y: [marks[0], marks[marks.len() - 1]],
        }
    }

    fn axes(&self, out: &mut String, plot: &Plot) {
        let (right, base) = (WIDTH - RIGHT, plot.base());
        for value in ticks(plot.y[0], plot.y[1]) {
            let (y, text) = (plot.at_y(value), self.unit.write(value));
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        for value in ticks(plot.x[0], plot.x[1]) {
            if value > plot.x[1] * 1.000_1 {
                continue;
            }
            let (x, text) = (plot.at_x(value), ChartUnit::Number.write(value));
            let _ = write!(
                out,
                "<path class=\"axis\" d=\"M{x:.1} {base}v4\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                base + 17.0
            );
        }
        let _ = write!(
            out,
            "<path class=\"axis\" d=\"M{LEFT} {base}H{right}\"/>\
             <text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            base + 36.0,
            escape(self.x)
        );
        let _ = write!(
            out,
            "<text x=\"{LEFT}\" y=\"{:.1}\">{}</text>",
            base + 36.0,
            escape(&format!("↑ {}", self.y))
        );
    }

    fn draw_faults(&self, out: &mut String, plot: &Plot) {
        let (high, base) = (plot.at_y(plot.y[1]), plot.base());
        for fault in self.faults.iter().take(FAULTS) {
            let (from, what) = (plot.at_x(fault.from), escape(&fault.what));
            if let Some(until) = fault.until {
                let (width, height) = ((plot.at_x(until) - from).max(1.0), base - high);
                let _ = write!(
                    out,
                    "<rect class=\"fault\" x=\"{from:.1}\" y=\"{high:.1}\" width=\"{width:.1}\" \
                     height=\"{height:.1}\"><title>{what}</title></rect>"
                );
            } else {
                let _ = write!(
                    out,
                    "<path class=\"moment\" d=\"M{from:.1} {high:.1}V{base:.1}\"><title>{what}</title></path>"
                );
            }
        }
    }

    /// Median of the values of all curves, in equal parts of the x axis.
    fn median(&self, plot: &Plot) -> RunSeries {
        let width = plot.x[1] / MEDIANS as f64;
        let mut parts = vec![Vec::new(); MEDIANS];
        for [x, y] in self.series.iter().flat_map(|series| &series.points) {
            if x.is_finite() && y.is_finite() {
                parts[((x / width) as usize).min(MEDIANS - 1)].push(*y);
            }
        }
        let middle = |(part, values): (usize, &mut Vec<f64>)| {
            values.sort_unstable_by(f64::total_cmp);
            let median = values.get(values.len() / 2)?;
            Some([(part as f64 + 0.5) * width, *median])
        };
        RunSeries {
            name: "median".to_owned(),
            points: parts.iter_mut().enumerate().filter_map(middle).collect(),
        }
    }

    fn curve(
        &self,
        out: &mut String,
        plot: &Plot,
        (class, colour): (&str, usize),
        series: &RunSeries,
        gap: Option<f64>,
    ) {
        let points = &series.points;
        let is_gap =
            |from: usize| gap.is_some_and(|gap| points[from + 1][0] - points[from][0] > gap);
        let stride = series.points.len().div_ceil(POINTS).max(1);
        let last = series.points.len().saturating_sub(1);
        let mut path = String::new();
        let mut starts = true;
        for (index, [x, y]) in points.iter().enumerate() {
            let follows_gap = index > 0 && is_gap(index - 1);
            starts |= follows_gap;
            let is_end = index == last || follows_gap || is_gap(index);
            let drawn = index % stride == 0 || is_end;
            if !drawn || !x.is_finite() || !y.is_finite() {
                continue;
            }
            let (x, y) = (plot.at_x(*x), plot.at_y(*y));
            let _ = if std::mem::take(&mut starts) {
                // A point between two gaps is drawn by a line of no length.
                write!(path, "M{x:.1} {y:.1}h0")
            } else if self.steps {
                write!(path, "H{x:.1}V{y:.1}")
            } else {
                write!(path, "L{x:.1} {y:.1}")
            };
        }
        let name = escape(&series.name);
        let _ = write!(
            out,
            "<path class=\"{class}\" style=\"stroke:var(--s{colour})\" d=\"{path}\"><title>{name}</title></path>"
        );
    }
}

/// Vertical bars, one for each name.
pub fn bars(unit: ChartUnit, y: &str, colour: usize, values: &[(&str, f64)]) -> String {
    let largest = values.iter().map(|it| it.1).fold(0.0, f64::max);
    let chart = LineChart {
        y,
        unit,
        ..LineChart::default()
    };
    let marks = ticks(0.0, if largest > 0.0 { largest } else { 1.0 });
    let plot = Plot {
        top: 0.0,
        x: [0.0, values.len().max(1) as f64],
        y: [0.0, marks[marks.len() - 1]],
    };
    let mut axes = String::new();
    chart.axes(&mut axes, &plot);
    // Bars have names instead of positions, so the marks below the axis are left out.
    let cut = axes.find("<path class=\"axis\"").unwrap_or(axes.len());
    let rest = axes.rfind("<path class=\"axis\"").unwrap_or(cut);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">{}{}",
        escape(y),
        &axes[..cut],
        &axes[rest..]
    );
    let room = plot.at_x(1.0) - plot.at_x(0.0);
    let width = (room * 0.78).min(40.0);
    let every = (values.len() as f64 * 72.0 / (WIDTH - LEFT))
        .ceil()
        .max(1.0) as usize;
    for (index, (name, value)) in values.iter().enumerate() {
        let middle = plot.at_x(index as f64) + room / 2.0;
        let (x, y, base) = (middle - width / 2.0, plot.at_y(*value), plot.base());
        let (height, text) = (base - y, unit.write(*value));
        let name = escape(name);
        let _ = write!(
            out,
            "<rect class=\"bar\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"1.5\" fill=\"var(--s{colour})\"><title>{name}: {text}</title></rect>"
        );
        if index % every == 0 {
            let short: String = name.chars().take(12).collect();
            let _ = write!(
                out,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{short}</text>",
                base + 17.0
            );
        }
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        assert_eq!(ticks(0.0, 10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(
            ticks(0.0, 0.9),
            [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
        );
        let around = ticks(1_003.0, 1_017.0);
        assert!(around[0] <= 1_003.0 && around[around.len() - 1] >= 1_017.0);
        assert!(around.len() <= 7);
    }

    #[test]
    fn foreign_text_cannot_leave_its_place() {
        let hostile = "</title><script>alert('x')</script>\u{0}\"&";
        let escaped = escape(hostile);
        assert!(
            !escaped.contains(['<', '>', '"', '\'', '\u{0}']),
            "{escaped}"
        );
        let chart = LineChart {
            series: vec![RunSeries {
                name: hostile.to_owned(),
                points: vec![[0.0, f64::NAN], [1.0, 1.0], [2.0, 3.0]],
            }],
            ..LineChart::default()
        };
        let svg = chart.svg("");
        assert!(!svg.contains("<script") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn no_line_is_drawn_across_a_gap() {
        let points = |times: &[f64]| times.iter().map(|at| [*at, 1.0]).collect();
        let lines = |times: &[f64], gap| {
            let name = "a".to_owned();
            let points = points(times);
            let series = vec![RunSeries { name, points }];
            let chart = LineChart {
                series,
                gap,
                ..LineChart::default()
            };
            let svg = chart.svg("");
            let curve = svg.rsplit("d=\"").next().unwrap_or_default();
            curve.matches('M').count()
        };
        assert_eq!(lines(&[1.0, 2.0, 9.0, 10.0], None), 1);
        assert_eq!(lines(&[1.0, 2.0, 9.0, 10.0], Some(4.0)), 2);
        // Only every third of so many points is drawn, and the gap is between two others.
        let many: Vec<f64> = (0..1_500)
            .map(|at| f64::from(at) + if at > 700 { 9.0 } else { 0.0 })
            .collect();
        assert_eq!(lines(&many, Some(4.0)), 2);
    }

    #[test]
    fn charts_without_values_are_drawn() {
        assert!(LineChart::default().svg("").ends_with("</svg>"));
        assert!(!bars(ChartUnit::Bytes, "sent", 0, &[("a", 0.0)]).contains("NaN"));
        assert!(!bars(ChartUnit::Bytes, "sent", 0, &[]).contains("inf"));
    }
}
