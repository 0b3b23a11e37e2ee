//! Scenario files in TOML. Every unknown key, verb and rung is refused with its line and the
//! nearest valid word. The meaning of the names is checked by [`super::validate`].

use super::{
    error::LabFileError,
    hostile::{self, HostileGroup, behaviour::HostileBehaviour},
    links::LabBackend,
    scenario::{
        LabAllowance, LabExpectation, LabLink, LabReplica, LabRhythm, LabScenario, LabStep,
        LabTarget, LabVerb, NodeVerb, ScenarioLines, unknown_rung,
    },
};
use crate::{ladder::Rung, nearest::nearest};
use std::time::Duration;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Keys of a file.
const KEYS: [&str; 20] = [
    "purpose",
    "seconds",
    "block-time",
    "l1-block-time",
    "genesis-age",
    "backend",
    "rung",
    "load",
    "batcher",
    "proposer",
    "sequencer",
    "replicas",
    "late",
    "other-chain",
    "bootnode",
    "hostile",
    "links",
    "steps",
    "expect",
    "allow",
];
/// Keys of a step beside its verb.
const STEP_KEYS: [&str; 7] = ["at", "one-way", "rung", "loss", "until", "down", "up"];
const ALLOW_KEYS: [&str; 6] = [
    "agree-within",
    "lag",
    "memory-mb",
    "slowdown",
    "forks",
    "errors",
];
const HOSTILE_KEYS: [&str; 4] = ["behaviour", "count", "start", "targets"];
const LINK_KEYS: [&str; 2] = ["between", "rung"];

/// Mean times of `flap` and `storm` that give none, in seconds.
const DOWN: f64 = 1.5;
const UP: f64 = 3.0;
/// Largest number of replicas of the other chain.
const MAX_OTHERS: u64 = 8;
/// Largest age of a genesis in seconds: a day, whose blocks take the sequencer minutes.
const OLDEST: u64 = 86_400;
/// Largest limit of the memory of a node, in megabytes: a leak must be able to exceed it in a run.
const MAX_MEMORY_MB: u64 = 4_096;
/// Longest time that a file may give, in seconds: a day.
const LONGEST: f64 = 86_400.0;

pub(super) fn read(name: &str, text: &str) -> Result<LabScenario, LabFileError> {
    let lines = FileLines { text };
    let document = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| lines.at(span.start));
        LabFileError::new(line, error.message())
    })?;
    let top = FileSection::new(lines, document.span().start, document.get_ref(), &KEYS)?;
    let purpose = top.need("purpose")?.text()?;
    let mut scenario = LabScenario::new(name, purpose);
    scenario.length = top.need("seconds")?.time()?;
    let line = |key| top.get(key).map_or(0, |value| value.line());
    scenario.lines = ScenarioLines {
        purpose: line("purpose"),
        length: line("seconds"),
        proposer: line("proposer"),
        sequencer: line("sequencer"),
        replicas: line("replicas"),
        other_chain: line("other-chain"),
        bootnode: line("bootnode"),
    };
    read_links(&top, &mut scenario)?;
    for (key, field) in [
        ("block-time", &mut scenario.block_time),
        ("l1-block-time", &mut scenario.l1_block_time),
    ] {
        if let Some(value) = top.get(key) {
            *field = value.count(1, 60)?;
        }
    }
    if let Some(value) = top.get("genesis-age") {
        scenario.genesis_age = value.count(0, OLDEST)?;
    }
    if let Some(value) = top.get("load") {
        scenario.load = value.load()?;
    }
    for (key, field) in [
        ("batcher", &mut scenario.batcher),
        ("proposer", &mut scenario.proposer),
    ] {
        if let Some(value) = top.get(key) {
            *field = value.flag()?;
        }
    }
    if let Some(value) = top.get("other-chain") {
        scenario.other_chain = value.count(1, MAX_OTHERS)?;
    }
    if let Some(value) = top.get("sequencer") {
        scenario.sequencer = value.text()?.to_owned();
    }
    read_lists(&top, &mut scenario)?;
    Ok(scenario)
}

/// Reads the backend and the conditions of links.
fn read_links(top: &FileSection, scenario: &mut LabScenario) -> Result<(), LabFileError> {
    if let Some(value) = top.get("backend") {
        scenario.backend = value.backend()?;
    }
    if let Some(value) = top.get("rung") {
        scenario.rung = value.rung()?;
    }
    for value in top.list("links")? {
        let link = value.section(&LINK_KEYS)?;
        let [near, far] = link.need("between")?.pair()?;
        scenario.links.push(LabLink {
            near,
            far,
            rung: link.need("rung")?.rung()?,
            line: value.line(),
        });
    }
    Ok(())
}

/// Reads replicas, bootnode, hostile peers, steps, expectations and the allowance.
fn read_lists(top: &FileSection, scenario: &mut LabScenario) -> Result<(), LabFileError> {
    for value in top.list("replicas")? {
        scenario.replicas.push(LabReplica {
            line: value.line(),
            ..LabReplica::new(value.text()?, Duration::ZERO)
        });
    }
    if let Some(late) = top.get("late") {
        for (name, value) in late.entries()? {
            scenario.replicas.push(LabReplica {
                line: value.line(),
                ..LabReplica::new(name, value.time()?)
            });
        }
    }
    if let Some(value) = top.get("bootnode") {
        scenario.bootnode = Some(value.text()?.to_owned());
    }
    for value in top.list("hostile")? {
        scenario.hostile.push(hostile(&value)?);
    }
    for value in top.list("steps")? {
        scenario.steps.push(step(&value)?);
    }
    for value in top.list("expect")? {
        scenario.expect.push(LabExpectation {
            text: value.text()?.to_owned(),
            line: value.line(),
        });
    }
    if let Some(value) = top.get("allow") {
        scenario.allow = allowance(&value.section(&ALLOW_KEYS)?)?;
        scenario.allow.line = value.line();
    }
    Ok(())
}

fn allowance(allow: &FileSection) -> Result<LabAllowance, LabFileError> {
    let mut read = LabAllowance::default();
    if let Some(value) = allow.get("agree-within") {
        read.agree_within = value.time()?;
    }
    if let Some(value) = allow.get("lag") {
        read.lag = value.count(0, 1_000)?;
    }
    if let Some(value) = allow.get("memory-mb") {
        read.memory_mb = value.count(1, MAX_MEMORY_MB)?;
    }
    if let Some(value) = allow.get("slowdown") {
        read.slowdown = Some(value.between(1.0, 1_000.0)?);
    }
    if let Some(value) = allow.get("forks") {
        read.forks = value.flag()?;
    }
    for value in allow.list("errors")? {
        read.errors.push(value.text()?.to_owned());
    }
    Ok(read)
}

fn hostile(value: &FileValue) -> Result<HostileGroup, LabFileError> {
    let group = value.section(&HOSTILE_KEYS)?;
    let behaviour = group.need("behaviour")?;
    let word = behaviour.text()?;
    let named = HostileBehaviour::named(word).ok_or_else(|| {
        let advice = nearest(word, HostileBehaviour::ALL.map(HostileBehaviour::word));
        let message = format!("no hostile behaviour is called `{word}`{advice}");
        LabFileError::new(behaviour.line(), message)
    })?;
    let start = group.get("start").map(|value| value.time());
    let mut read = HostileGroup::new(
        named,
        start.unwrap_or(Ok(Duration::from_secs_f64(hostile::DEFAULT_START_SECONDS)))?,
    );
    read.line = value.line();
    if let Some(count) = group.get("count") {
        read.count = count.count(1, hostile::MAX_PEERS)?;
    }
    if let Some(targets) = group.get("targets") {
        read.targets = targets.names()?;
        if read.targets.is_empty() {
            let message = "`targets` names no node; leave it out for all nodes";
            return Err(LabFileError::new(targets.line(), message));
        }
    }
    Ok(read)
}

/// Reads a step: a time, one verb, and the verb's details.
fn step(value: &FileValue) -> Result<LabStep, LabFileError> {
    let valid: Vec<&str> = LabVerb::WORDS.iter().chain(&STEP_KEYS).copied().collect();
    let step = value.section(&valid)?;
    let verbs: Vec<&str> = LabVerb::WORDS
        .into_iter()
        .filter(|word| step.get(word).is_some())
        .collect();
    let [word] = verbs[..] else {
        let found = if verbs.is_empty() {
            format!("no verb; use one of {}", LabVerb::WORDS.join(", "))
        } else {
            format!(
                "several verbs ({}); write a step for each",
                verbs.join(", ")
            )
        };
        return Err(LabFileError::new(
            value.line(),
            format!("a step has {found}"),
        ));
    };
    let details: &[&str] = match word {
        "cut" => &["one-way"],
        "slow" => &["rung"],
        "lossy" => &["loss"],
        "flap" | "storm" => &["until", "down", "up"],
        "fill-disk" | "reorg" => &["until"],
        _ => &[],
    };
    for key in STEP_KEYS.into_iter().filter(|key| *key != "at") {
        if let Some(value) = step.get(key).filter(|_| !details.contains(&key)) {
            let message = format!("`{word}` has no `{key}`");
            return Err(LabFileError::new(value.line(), message));
        }
    }
    Ok(LabStep {
        at: step.need("at")?.time()?,
        verb: verb(word, &step)?,
        line: value.line(),
    })
}

fn verb(word: &str, step: &FileSection) -> Result<LabVerb, LabFileError> {
    let value = step.need(word)?;
    if let Some(verb) = NodeVerb::named(word) {
        return Ok(LabVerb::Nodes(verb, value.names()?));
    }
    Ok(match word {
        "cut"
            if step
                .get("one-way")
                .map_or(Ok(false), |value| value.flag())? =>
        {
            let [from, to] = value.pair()?;
            LabVerb::CutOneWay(from, to)
        }
        "cut" => LabVerb::Cut(value.target()?),
        "heal" => LabVerb::Heal(value.target()?),
        "isolate" => LabVerb::Isolate(value.text()?.to_owned()),
        "split" => {
            let groups = value.items()?.into_iter().map(|group| group.names());
            LabVerb::Split(groups.collect::<Result<_, _>>()?)
        }
        "slow" => LabVerb::Slow(value.target()?, step.need("rung")?.rung()?),
        "lossy" => LabVerb::Lossy(value.target()?, step.need("loss")?.share()?),
        "flap" => LabVerb::Flap(value.target()?, rhythm(step)?),
        "storm" => LabVerb::Storm(value.names()?, rhythm(step)?),
        "fill-disk" => LabVerb::FillDisk(value.names()?, step.need("until")?.time()?),
        "reorg" => LabVerb::Reorg(value.names()?, step.need("until")?.time()?),
        _ => LabVerb::Load(value.load()?),
    })
}

fn rhythm(step: &FileSection) -> Result<LabRhythm, LabFileError> {
    let mean = |key: &str, default: f64| {
        let given = step.get(key).map(|value| value.time());
        given.unwrap_or(Ok(Duration::from_secs_f64(default)))
    };
    Ok(LabRhythm {
        until: step.need("until")?.time()?,
        down: mean("down", DOWN)?,
        up: mean("up", UP)?,
    })
}

/// The text of a file, to turn offsets into line numbers.
#[derive(Clone, Copy)]
struct FileLines<'a> {
    text: &'a str,
}

impl FileLines<'_> {
    fn at(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|byte| **byte == b'\n').count()
    }
}

/// A table whose keys are known to be valid.
struct FileSection<'a> {
    lines: FileLines<'a>,
    line: usize,
    table: &'a DeTable<'a>,
}

impl<'a> FileSection<'a> {
    fn new(
        lines: FileLines<'a>,
        offset: usize,
        table: &'a DeTable<'a>,
        valid: &[&str],
    ) -> Result<Self, LabFileError> {
        for key in table.keys() {
            let word: &str = key.get_ref();
            if !valid.contains(&word) {
                let advice = nearest(word, valid.iter().copied());
                let line = lines.at(key.span().start);
                return Err(LabFileError::new(
                    line,
                    format!("unknown key `{word}`{advice}"),
                ));
            }
        }
        let line = lines.at(offset);
        Ok(Self { lines, line, table })
    }

    fn get(&self, key: &str) -> Option<FileValue<'a>> {
        self.table.get(key).map(|value| FileValue {
            lines: self.lines,
            value,
        })
    }

    fn need(&self, key: &str) -> Result<FileValue<'a>, LabFileError> {
        self.get(key)
            .ok_or_else(|| LabFileError::new(self.line, format!("`{key}` is missing")))
    }

    /// The items of an optional array.
    fn list(&self, key: &str) -> Result<Vec<FileValue<'a>>, LabFileError> {
        self.get(key).map_or(Ok(Vec::new()), |value| value.items())
    }
}

/// A value with its place.
struct FileValue<'a> {
    lines: FileLines<'a>,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> FileValue<'a> {
    fn line(&self) -> usize {
        self.lines.at(self.value.span().start)
    }

    fn refused(&self, wanted: &str) -> LabFileError {
        let found = self.value.get_ref().type_str();
        LabFileError::new(
            self.line(),
            format!("{wanted} is needed here, not this {found}"),
        )
    }

    fn text(&self) -> Result<&'a str, LabFileError> {
        let text = self.value.get_ref().as_str();
        text.ok_or_else(|| self.refused("a text"))
    }

    fn flag(&self) -> Result<bool, LabFileError> {
        let flag = self.value.get_ref().as_bool();
        flag.ok_or_else(|| self.refused("true or false"))
    }

    fn number(&self) -> Result<f64, LabFileError> {
        let number = match self.value.get_ref() {
            DeValue::Integer(integer) => integer.as_str().parse().ok(),
            DeValue::Float(float) => float.as_str().parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| self.refused("a number"))
    }

    fn between(&self, low: f64, high: f64) -> Result<f64, LabFileError> {
        let number = self.number()?;
        if (low..=high).contains(&number) {
            return Ok(number);
        }
        let message = format!("{number} is not between {low} and {high}");
        Err(LabFileError::new(self.line(), message))
    }

    fn time(&self) -> Result<Duration, LabFileError> {
        self.between(0.0, LONGEST).map(Duration::from_secs_f64)
    }

    fn share(&self) -> Result<f64, LabFileError> {
        self.between(0.0, 1.0)
    }

    fn count(&self, low: u64, high: u64) -> Result<u64, LabFileError> {
        let number = self.between(low as f64, high as f64)?;
        if number.fract() == 0.0 {
            return Ok(number as u64);
        }
        Err(self.refused("a whole number"))
    }

    /// Transactions per second; more than 5,000 is more than one machine signs.
    fn load(&self) -> Result<u32, LabFileError> {
        self.count(0, 5_000).map(|count| count as u32)
    }

    fn rung(&self) -> Result<&'static Rung, LabFileError> {
        let name = self.text()?;
        Rung::named(name).ok_or_else(|| unknown_rung(self.line(), name))
    }

    fn backend(&self) -> Result<LabBackend, LabFileError> {
        let word = self.text()?;
        LabBackend::named(word).ok_or_else(|| {
            let advice = nearest(word, LabBackend::WORDS);
            LabFileError::new(
                self.line(),
                format!("no backend is called `{word}`{advice}"),
            )
        })
    }

    fn items(&self) -> Result<Vec<FileValue<'a>>, LabFileError> {
        let items = self.value.get_ref().as_array();
        let items = items.ok_or_else(|| self.refused("an array"))?;
        let item = |value| FileValue {
            lines: self.lines,
            value,
        };
        Ok(items.iter().map(item).collect())
    }

    fn entries(&self) -> Result<Vec<(&'a str, FileValue<'a>)>, LabFileError> {
        let table = self.value.get_ref().as_table();
        let table = table.ok_or_else(|| self.refused("a table"))?;
        let lines = self.lines;
        let entry = |(key, value): (&'a Spanned<_>, _)| {
            let key: &'a toml::de::DeString = key.get_ref();
            (&**key, FileValue { lines, value })
        };
        Ok(table.iter().map(entry).collect())
    }

    fn section(&self, valid: &[&str]) -> Result<FileSection<'a>, LabFileError> {
        let table = self.value.get_ref().as_table();
        let table = table.ok_or_else(|| self.refused("a table"))?;
        FileSection::new(self.lines, self.value.span().start, table, valid)
    }

    /// One name, or an array of names.
    fn names(&self) -> Result<Vec<String>, LabFileError> {
        if let Some(name) = self.value.get_ref().as_str() {
            return Ok(vec![name.to_owned()]);
        }
        let names = self.items()?.into_iter();
        names.map(|name| name.text().map(str::to_owned)).collect()
    }

    fn pair(&self) -> Result<[String; 2], LabFileError> {
        let names: Result<[String; 2], _> = self.names()?.try_into();
        names.map_err(|_| self.refused("an array of two nodes"))
    }

    /// Links: `"all"`, one node, or an array of two nodes.
    fn target(&self) -> Result<LabTarget, LabFileError> {
        Ok(match self.value.get_ref().as_str() {
            Some("all") => LabTarget::All,
            Some(node) => LabTarget::Node(node.to_owned()),
            None => {
                let [one, other] = self.pair()?;
                LabTarget::Pair(one, other)
            }
        })
    }
}
