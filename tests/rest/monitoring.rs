//! examples/monitoring: the script, the alerts and the dashboard name what a server shows.

use std::collections::BTreeSet;

use harness::{Server, command, error_text};

use crate::file;

/// Every word in `text` that begins with `prefix`.
fn words<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(prefix)).collect()
}

#[test]
fn the_script_of_the_exporter_shows_every_number_of_info() {
    let server = Server::start();
    server.value("RL.LOG key 1 1m COST 2 FORCE");
    let values: Vec<String> = redis::cmd("EVAL")
        .arg(file("examples/monitoring/rl.lua"))
        .arg(0)
        .query(&mut server.connect())
        .expect("names and values");
    let shown: Vec<String> = values.chunks(2).map(|pair| pair.join(":")).collect();
    let info = server.text("INFO rl");
    let numbers: Vec<&str> =
        info.lines().filter(|line| line.contains(':') && !line.starts_with("rl_version")).collect();
    assert!(numbers.len() > 15, "{info}");
    assert_eq!(shown, numbers);
}

#[test]
fn alerts_and_dashboard_name_numbers_of_info_and_metrics_on_the_page() {
    let info = Server::start().text("INFO rl");
    let page = file("docs/monitoring.md");
    let dashboard = file("examples/monitoring/dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().expect("a query")).collect();
    let alerts = file("examples/monitoring/alerts.yml");
    for (name, text) in [("dashboard.json", queries.join("\n")), ("alerts.yml", alerts.clone())] {
        let (numbers, metrics) = (words(&text, "rl_"), words(&text, "redis_"));
        assert!(numbers.len() > 4 && metrics.len() > 2, "{name}: {numbers:?} {metrics:?}");
        for number in numbers {
            assert!(info.contains(&format!("\n{number}:")), "{name}: INFO has no {number}");
        }
        for metric in metrics {
            assert!(page.contains(&format!("`{metric}")), "{name}: the page does not explain {metric}");
        }
    }
    let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    for name in names {
        assert!(page.contains(&format!("| {name} |")), "the page does not explain {name}");
    }
}

#[test]
fn what_an_application_is_denied_is_counted_by_the_codes_of_the_alert() {
    let server = Server::start();
    let (mut operator, mut app) = (server.connect(), server.connect());
    for line in ["ACL SETUSER app on >secret", "CONFIG SET requirepass secret"] {
        command(line).exec(&mut operator).expect("OK");
    }
    for (line, code) in [
        ("AUTH app wrong", "WRONGPASS"),
        ("AUTH app secret", ""),
        ("RL.LOG key 5 1m", "NOPERM"),
        ("RESET", ""),
        ("RL.LOG key 5 1m", "NOAUTH"),
    ] {
        let error = command(line).exec(&mut app).err();
        assert!(error.map_or(code.is_empty(), |error| error_text(&error).starts_with(code)), "{line}");
    }

    let errors: String = redis::cmd("INFO").arg("errorstats").query(&mut operator).expect("INFO");
    let alerts = file("examples/monitoring/alerts.yml");
    let codes = alerts.split(r#"err=~""#).nth(1).and_then(|rest| rest.split('"').next()).expect("codes");
    for code in codes.split('|') {
        assert!(errors.contains(&format!("\nerrorstat_{code}:count=")), "{code}: {errors}");
    }
}
