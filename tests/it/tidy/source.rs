//! The sources of one crate: files in the order in which `mod` declarations lead to them from the
//! crate's roots, and what their paths mean.

use super::facts::{Facts, Import, Name, Place};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Re-exports that one path may lead through.
const DEPTH: usize = 8;

/// A path with its first segment resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// Module path and item in the same crate.
    Inside(Vec<String>),
    /// Begins with the name of another crate, or is local (`T::new`).
    Outside(Vec<String>),
    /// The same, by way of a `use` declaration in another module of the crate.
    Reexported(Vec<String>),
}

/// Imported names of a module: the path that each stands for, and whether it begins with `::`.
type Aliases = BTreeMap<String, (Vec<String>, bool)>;

pub struct Crate {
    /// As paths name it.
    pub name: String,
    /// Its sources' folder, from the repository's root.
    pub folder: String,
    pub facts: Facts,
    /// Modules that are not test code.
    pub modules: BTreeSet<Vec<String>>,
    /// Files that `mod` declarations lead to, with their text.
    pub files: BTreeMap<String, String>,
    imports: BTreeMap<Vec<String>, Aliases>,
    globs: BTreeMap<Vec<String>, Vec<Vec<String>>>,
    items: BTreeMap<Vec<String>, BTreeSet<String>>,
}

impl Crate {
    /// Reads the crate whose roots are `lib.rs` and `main.rs` in `folder`.
    pub fn read(name: &str, folder: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self::from_reader(name, folder, |file| {
            fs::read_to_string(root.join(file)).ok()
        })
    }

    /// A crate whose files are given as text, for the tests of the rules.
    pub fn planted(name: &str, folder: &str, files: &[(&str, &str)]) -> Self {
        let find = |wanted: &str| {
            let file = files
                .iter()
                .find(|(file, _)| format!("{folder}/{file}") == wanted)?;
            Some(file.1.to_owned())
        };
        Self::from_reader(name, folder, find)
    }

    fn from_reader(name: &str, folder: &str, text: impl Fn(&str) -> Option<String>) -> Self {
        let mut new = Self {
            name: name.to_owned(),
            folder: folder.to_owned(),
            facts: Facts::default(),
            modules: BTreeSet::new(),
            files: BTreeMap::new(),
            imports: BTreeMap::new(),
            globs: BTreeMap::new(),
            items: BTreeMap::new(),
        };
        for (root, module) in [("lib.rs", vec![]), ("main.rs", vec!["main".to_owned()])] {
            let file = format!("{folder}/{root}");
            if let Some(text) = text(&file) {
                new.add(file, text, module, false);
            }
        }
        assert!(!new.files.is_empty(), "{folder} has no root");
        new.follow(text);
        new.index();
        new
    }

    fn add(&mut self, file: String, text: String, module: Vec<String>, test: bool) {
        if !test {
            self.modules.insert(module.clone());
        }
        let place = Place {
            file: file.clone(),
            line: 1,
            module,
            test,
        };
        Facts::read(&mut self.facts, &text, place);
        self.files.insert(file, text);
    }

    /// Reads the files of all `mod` declarations; each may declare more.
    fn follow(&mut self, text: impl Fn(&str) -> Option<String>) {
        let mut next = 0;
        while next < self.facts.submodules.len() {
            let (path, test) = {
                let submodule = &self.facts.submodules[next];
                (submodule.path.clone(), submodule.test)
            };
            next += 1;
            // `main.rs` declares its modules beside it, as `lib.rs` does.
            let on_disk = path.strip_prefix(&["main".to_owned()][..]).unwrap_or(&path);
            let file = format!("{}/{}.rs", self.folder, on_disk.join("/"));
            let source = text(&file)
                .unwrap_or_else(|| panic!("no {file}: a module is name.rs beside name/"));
            self.add(file, source, path, test);
        }
    }

    fn index(&mut self) {
        for module in &self.facts.inline_modules {
            self.modules.insert(module.clone());
        }
        for Import { name, alias } in &self.facts.imports {
            let module = name.place.module.clone();
            if alias == "*" {
                self.globs
                    .entry(module)
                    .or_default()
                    .push(name.segments.clone());
            } else {
                let target = (name.segments.clone(), name.rooted);
                self.imports
                    .entry(module)
                    .or_default()
                    .insert(alias.clone(), target);
            }
        }
        for (module, item) in &self.facts.items {
            self.items
                .entry(module.clone())
                .or_default()
                .insert(item.clone());
        }
    }

    /// All paths and `use` declarations of the crate.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        let imports = self.facts.imports.iter().map(|import| &import.name);
        imports.chain(&self.facts.names)
    }

    /// All of it but test code.
    pub fn production_names(&self) -> impl Iterator<Item = &Name> {
        self.names().filter(|name| !name.place.test)
    }

    pub fn resolve(&self, name: &Name) -> Resolved {
        if name.rooted {
            return Resolved::Outside(name.segments.clone());
        }
        self.resolve_in(&name.place.module, &name.segments, DEPTH)
    }

    fn resolve_in(&self, module: &[String], path: &[String], depth: usize) -> Resolved {
        let Some(first) = path.first() else {
            return Resolved::Outside(Vec::new());
        };
        let rest = &path[1..];
        let below = |base: &[String]| [base, rest].concat();
        match first.as_str() {
            "crate" => return self.canonical(below(&[]), depth),
            "self" => return self.canonical(below(module), depth),
            "super" => {
                let parent = &module[..module.len().saturating_sub(1)];
                if rest.first().is_some_and(|next| next == "super") {
                    return self.resolve_in(parent, rest, depth);
                }
                return self.canonical(below(parent), depth);
            }
            own if own == self.name => return self.canonical(below(&[]), depth),
            _ => {}
        }
        let whole = [module, path].concat();
        let is_child = self.modules.contains(&whole[..=module.len()]);
        let is_item = self
            .items
            .get(module)
            .is_some_and(|items| items.contains(first));
        if is_child || is_item {
            return self.canonical(whole, depth);
        }
        match self.import_of(module, first) {
            // `use metrics;` names the crate itself.
            Some((target, _)) if target.first() == Some(first) => {
                Resolved::Outside([target.as_slice(), rest].concat())
            }
            Some((target, true)) => Resolved::Outside([target.as_slice(), rest].concat()),
            Some((target, false)) if depth > 0 => {
                self.resolve_in(module, &[target.as_slice(), rest].concat(), depth - 1)
            }
            _ => Resolved::Outside(path.to_vec()),
        }
    }

    fn import_of(&self, module: &[String], alias: &str) -> Option<&(Vec<String>, bool)> {
        self.imports.get(module)?.get(alias)
    }

    /// Follows re-exports: `use` declarations of the module that a path inside the crate names.
    fn canonical(&self, path: Vec<String>, depth: usize) -> Resolved {
        let mut end = path.len();
        while end > 0 && !self.modules.contains(&path[..end]) {
            end -= 1;
        }
        let (module, rest) = path.split_at(end);
        let Some(first) = rest.first().filter(|_| depth > 0) else {
            return Resolved::Inside(path);
        };
        if let Some((target, rooted)) = self.import_of(module, first) {
            let whole = [target.as_slice(), &rest[1..]].concat();
            let own_name = target.len() == 1 && target[0] == *first;
            if *rooted || own_name {
                return Resolved::Reexported(whole);
            }
            return match self.resolve_in(module, &whole, depth - 1) {
                Resolved::Outside(path) => Resolved::Reexported(path),
                inside => inside,
            };
        }
        let defines = |module: &[String], item: &String| {
            self.items
                .get(module)
                .is_some_and(|items| items.contains(item))
        };
        if !defines(module, first) {
            for glob in self.globs.get(module).into_iter().flatten() {
                if let Resolved::Inside(target) = self.resolve_in(module, glob, depth - 1)
                    && defines(&target, first)
                {
                    return Resolved::Inside([target.as_slice(), rest].concat());
                }
            }
        }
        Resolved::Inside(path)
    }
}
