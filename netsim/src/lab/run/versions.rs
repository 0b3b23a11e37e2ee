//! The versions of the programs of a run, read before it starts.

use crate::guard::MARK;
use crate::lab::{
    error::LabError,
    report::LabVersions,
    run::LabSettings,
    scenario::{LabScenario, LabStep, LabVerb, NodeVerb},
};
use std::{path::Path, process::Stdio, time::Duration};
use tokio::{process::Command, time::timeout};

/// Time limit of a program that prints its version.
const LIMIT: Duration = Duration::from_secs(10);

/// Reads the versions of the programs that a scenario uses. `folder` is that of the run, for the
/// guard.
pub(super) async fn read(
    scenario: &LabScenario,
    settings: &LabSettings,
    folder: &Path,
) -> Result<LabVersions, LabError> {
    let has_upgrade = |step: &LabStep| matches!(step.verb, LabVerb::Nodes(NodeVerb::Upgrade, _));
    let upgrade = if scenario.steps.iter().any(has_upgrade) {
        Some(version(&settings.upgrade, folder, LIMIT).await?)
    } else {
        None
    };
    Ok(LabVersions {
        netsim: env!("CARGO_PKG_VERSION").to_owned(),
        starling: version(&settings.program, folder, LIMIT).await?,
        upgrade,
    })
}

/// The version that a program prints; empty if it prints none. A program that does not end would
/// not run as a node either, so it is an error.
async fn version(program: &Path, folder: &Path, limit: Duration) -> Result<String, LabError> {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .env(MARK, folder)
        .stdin(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    // Dropping the future kills the process.
    let output = timeout(limit, command.output()).await;
    let output = output.map_err(|_| LabError::Slow {
        name: program.display().to_string(),
        what: "`--version`",
        limit,
    })?;
    let text = output.map(|output| output.stdout).unwrap_or_default();
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A program with one command. Another process writes its file: a test that forks meanwhile
    /// would keep ours open, and the kernel does not start a file that is open for writing.
    fn program(folder: &Path, command: &str) -> PathBuf {
        let program = folder.join("program");
        let script = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let mut writer = std::process::Command::new("sh");
        let writer = writer.args(["-c", script]).arg(&program).arg(command);
        assert!(writer.status().unwrap().success());
        program
    }

    #[tokio::test]
    async fn a_version_is_read_and_a_program_without_one_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let printing = program(folder.path(), "echo starling 1.2");
        let read = version(&printing, folder.path(), LIMIT).await.unwrap();
        assert_eq!(read, "starling 1.2");
        let absent = folder.path().join("absent");
        let read = version(&absent, folder.path(), LIMIT).await.unwrap();
        assert_eq!(read, "");
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_on_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let sleeping = program(folder.path(), "exec sleep 60");
        let limit = Duration::from_millis(300);
        let error = version(&sleeping, folder.path(), limit).await.unwrap_err();
        let expected = format!(
            "`--version` of {} took more than 0 s, and was ended",
            sleeping.display()
        );
        assert_eq!(error.to_string(), expected);
    }
}
