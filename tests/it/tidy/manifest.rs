//! Reads from a `Cargo.toml` what the rules need: the names of the dependencies in each section.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Manifest {
    sections: BTreeMap<String, Vec<String>>,
}

impl Manifest {
    /// Reads section headers and the keys below them. In our manifests a dependency is one line, or
    /// a section such as `[dependencies.name]`.
    pub fn parse(text: &str) -> Self {
        let mut sections: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut section = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(header) = line.strip_prefix('[') {
                section = header.trim_matches(['[', ']']).to_owned();
                if let Some((table, name)) = section.split_once("dependencies.") {
                    let table = format!("{table}dependencies");
                    sections.entry(table).or_default().push(name.to_owned());
                }
            } else if let Some((key, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
                let name = key.split('.').next().unwrap_or(key);
                let name = name.trim().trim_matches('"').to_owned();
                sections.entry(section.clone()).or_default().push(name);
            }
        }
        Self { sections }
    }

    /// The keys in a section such as `dev-dependencies`.
    pub fn section(&self, name: &str) -> &[String] {
        self.sections.get(name).map_or(&[], Vec::as_slice)
    }
}

/// The name of a package in Rust paths.
pub fn crate_name(package: &str) -> String {
    match package {
        "ethereum_ssz" => "ssz".to_owned(),
        other => other.replace('-', "_"),
    }
}
