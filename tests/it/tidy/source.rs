//! The sources of one crate: its files, in the order of the `mod` declarations that begin at the
//! crate's roots, and the resolution of paths in these files.

use super::facts::{Facts, Import, Name, Place};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Largest number of re-exports that the resolution of one path may pass through.
const DEPTH: usize = 8;

/// A path with its first segment resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// Module path and item name in the same crate.
    Inside(Vec<String>),
    /// A path that begins with the name of another crate, or with a local name (`T::new`).
    Outside(Vec<String>),
    /// A path into another crate, through a `use` declaration in another module of this crate.
    Reexported(Vec<String>),
}

/// Imported names of a module: the path of each, and whether the path begins with `::`.
type Aliases = BTreeMap<String, (Vec<String>, bool)>;

pub struct Crate {
    /// The crate's name in paths.
    pub name: String,
    /// Folder of the crate's sources, relative to the repository's root.
    pub folder: String,
    pub facts: Facts,
    /// Modules that are not test code.
    pub modules: BTreeSet<Vec<String>>,
    /// Files that `mod` declarations include, with their text.
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

    /// Makes a crate from files given as text, for the tests of the rules.
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

    /// Reads the files of all `mod` declarations. Each file may declare more modules.
    fn follow(&mut self, text: impl Fn(&str) -> Option<String>) {
        let mut next = 0;
        while next < self.facts.submodules.len() {
            let (path, test) = {
                let submodule = &self.facts.submodules[next];
                (submodule.path.clone(), submodule.test)
            };
            next += 1;
            // The modules that `main.rs` declares are in its own folder, as those of `lib.rs`.
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

    /// All paths and `use` declarations in the crate.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        let imports = self.facts.imports.iter().map(|import| &import.name);
        imports.chain(&self.facts.names)
    }

    /// All paths and `use` declarations outside of test code.
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
            // `use metrics;` imports the crate itself.
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

    /// Resolves re-exports, which are `use` declarations in the module that a path inside the crate
    /// names.
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
