//! The advice at the end of an error about an unknown word.

/// Largest edit distance of a word that is proposed instead of an unknown one.
const NEAR: usize = 3;

/// The end of an error about an unknown word: the nearest valid word, or all of them.
pub(crate) fn nearest<'a>(word: &str, valid: impl IntoIterator<Item = &'a str>) -> String {
    let valid: Vec<&str> = valid.into_iter().collect();
    let distance = |candidate: &str| strsim::damerau_levenshtein(word, candidate);
    let best = valid.iter().min_by_key(|candidate| distance(candidate));
    match best {
        Some(best) if distance(best) <= NEAR.min(best.len().max(2) - 1) => {
            format!("; did you mean `{best}`?")
        }
        _ => format!("; use one of {}", valid.join(", ")),
    }
}
