//! The last test target of a run: prints how many tests were skipped, and why. It has no harness,
//! so that libtest does not capture the line.

fn main() {
    // A caller that lists tests, as editors do, gets an empty list.
    if !std::env::args().any(|argument| argument == "--list") {
        println!("\n{}", starling_testkit::summary());
    }
}
