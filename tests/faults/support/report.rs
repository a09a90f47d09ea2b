//! The table of what each fault did.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Duration;

/// Names the file that the table is written to, when it is wanted.
const TABLE: &str = "FAULTS_TABLE";

/// What one fault did, from its injection until the last error.
#[derive(Clone, Debug)]
pub struct Row {
    pub fault: &'static str,
    pub topology: &'static str,
    pub admitted: usize,
    pub denied: usize,
    /// Answered by the failure policy.
    pub degraded: usize,
    pub longest: Duration,
    /// The longest answer of the control at the same time.
    pub control: Duration,
    /// Checks that took longer than they may, by more than the control did at the same time.
    pub late: usize,
    /// After the injection.
    pub first_error: Option<Duration>,
    /// After the end of the fault.
    pub last_error: Option<Duration>,
    pub over_admission: f64,
}

type Rows = BTreeMap<(usize, usize), String>;

/// Whether times are recorded.
pub fn is_wanted() -> bool {
    std::env::var_os(TABLE).is_some()
}

static ROWS: Mutex<Rows> = Mutex::new(BTreeMap::new());
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

const TOPOLOGIES: [&str; 4] = ["standalone", "wire", "Sentinel", "Cluster"];

impl Row {
    /// Prints it, and writes it to the table.
    pub fn publish(&self) {
        let line = self.line();
        println!("{line}");
        let rank = TOPOLOGIES.iter().position(|name| self.topology.starts_with(name)).unwrap_or(TOPOLOGIES.len());
        let mut rows = ROWS.lock().unwrap();
        let place = (rank, rows.len());
        rows.insert(place, line);
        write(&rows, &NOTES.lock().unwrap());
    }

    fn line(&self) -> String {
        let after = |time: Option<Duration>| time.map_or("none".to_owned(), millis);
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            self.topology,
            self.fault,
            self.admitted,
            self.denied,
            self.degraded,
            millis(self.longest),
            millis(self.control),
            self.late,
            after(self.first_error),
            after(self.last_error),
            self.over_admission
        )
    }
}

/// A figure that is no row: a sentence below the table.
pub fn note(text: String) {
    println!("{text}");
    let mut notes = NOTES.lock().unwrap();
    notes.push(text);
    write(&ROWS.lock().unwrap(), &notes);
}

fn write(rows: &Rows, notes: &[String]) {
    let Some(path) = std::env::var_os(TABLE) else { return };
    let mut text = String::from(
        "| topology | fault | admitted | denied | by policy | longest ms | control ms | late | first error ms \
         | last error ms | over-admitted |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for line in rows.values() {
        writeln!(text, "{line}").unwrap();
    }
    for note in notes {
        writeln!(text, "\n- {note}").unwrap();
    }
    std::fs::write(path, text).unwrap();
}

fn millis(time: Duration) -> String {
    format!("{:.0}", time.as_secs_f64() * 1000.0)
}
