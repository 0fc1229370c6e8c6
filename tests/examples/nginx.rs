//! examples/nginx in front of an application, on real servers.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use harness::{Process, Server, free_port, wait_for};
use tempfile::TempDir;

use crate::app::{Answer, is_installed};

const NGINX: &str = "/usr/sbin/nginx";
const MODULES: &str = "/usr/lib/nginx/modules";

/// A test's small limits, in place of the file's own: three requests of an address and two of a key.
const SMALL: [(&str, &str); 2] =
    [(r#""LOG", 100, 60"#, r#""LOG", 3, 60"#), (r#""SLIDING", 1000, 3600"#, r#""LOG", 2, 3600"#)];
const LONG_TIMEOUT: (&str, &str) = ("timeout_ms = 100", "timeout_ms = 180000");
const FAIL_CLOSED: (&str, &str) = (r#"fail = "open""#, r#"fail = "closed""#);

/// A running nginx with the example's files. One process without a master, so that dropping it stops it.
struct Nginx {
    process: Process,
    url: String,
    _folder: TempDir,
}

impl Nginx {
    /// Whether the example can run here; see [`is_installed`].
    fn is_there() -> bool {
        let lua = format!("{MODULES}/ngx_http_lua_module.so");
        let needed = [NGINX, lua.as_str(), "/usr/share/lua/5.1/nginx/redis.lua"];
        is_installed(needed.iter().all(|file| Path::new(file).exists()), "nginx with Lua")
    }

    /// Runs the example in front of an application, after these changes of its text. The client's address is taken from
    /// `X-Forwarded-For`.
    fn start(server: &Server, changes: &[(&str, &str)]) -> Nginx {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/nginx");
        let folder = TempDir::new().expect("a temporary folder");
        let at = folder.path().display();
        let (port, redis) = (free_port(), server.port());
        let places = [
            ("8000".to_owned(), port.to_string()),
            ("127.0.0.1:8080".to_owned(), format!("unix:{at}/application")),
            ("6379".to_owned(), redis.to_string()),
            ("/etc/nginx/".to_owned(), format!("{}/", examples.display())),
        ];
        let changes = changes.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned()));
        let mut limit = fs::read_to_string(examples.join("limit.conf")).expect("the example");
        for (from, to) in changes.chain(places) {
            assert!(limit.contains(&from), "limit.conf has no {from}");
            limit = limit.replace(&from, &to);
        }
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|what| format!("{what}_temp_path {at}/{what};\n")).concat();
        let around = format!(
            "daemon off; master_process off; pid {at}/pid; error_log stderr notice;\n\
             load_module {MODULES}/ndk_http_module.so; load_module {MODULES}/ngx_http_lua_module.so;\n\
             events {{}}\n\
             http {{\n\
             access_log off; {temporary}\
             set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; error_page 429 /busy;\n\
             {limit}\n\
             server {{ listen unix:{at}/application; location / {{ return 200 $request_uri; }} }}\n\
             }}\n"
        );
        fs::write(folder.path().join("nginx.conf"), around).expect("a configuration");
        let mut command = Command::new(NGINX);
        command
            .args(["-e", "stderr", "-p"])
            .arg(folder.path())
            .arg("-c")
            .arg(folder.path().join("nginx.conf"));
        let process = Process::spawn(&mut command, folder.path().join("log"));
        let mut process = process.unwrap_or_else(|error| panic!("{error}"));
        wait_for("nginx to listen", || {
            assert!(process.is_running(), "{}", process.log());
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Nginx { process, url: format!("http://127.0.0.1:{port}"), _folder: folder }
    }

    fn get(&self, fields: &[(&str, &str)]) -> Answer {
        Answer::to(&format!("{}/page", self.url), fields, None)
            .unwrap_or_else(|error| panic!("{error}: {}", self.process.log()))
    }
}

/// Runs the test if nginx is there.
macro_rules! with_nginx {
    ($($test:ident $body:block)*) => { $(#[test] fn $test() { if Nginx::is_there() $body })* };
}

with_nginx! {
    an_allowed_request_is_told_both_limits_and_passed_on {
        let server = Server::start();
        let nginx = Nginx::start(&server, &[LONG_TIMEOUT]);
        let answer = nginx.get(&[("X-Forwarded-For", "192.0.2.1")]);
        assert_eq!((answer.status, answer.body.as_str()), (200, "/page"));
        assert_eq!(answer.policy.as_deref(), Some(r#""address-1m";q=100;w=60"#));
        assert_eq!(answer.limit.as_deref(), Some(r#""address-1m";r=99;t=60"#));
        let answer = nginx.get(&[("X-Forwarded-For", "192.0.2.1"), ("X-Api-Key", "secret")]);
        assert_eq!(answer.policy.as_deref(), Some(r#""address-1m";q=100;w=60, "key-1h";q=1000;w=3600"#));
        let limit = answer.limit.expect("figures of both");
        assert!(limit.starts_with(r#""address-1m";r=98;t=60, "key-1h";r=999;t="#), "{limit}");
        assert_eq!(answer.retry_after, None);
        // The key itself is not to be read in Redis.
        assert_eq!(server.integer("EXISTS address:192.0.2.1 key:5ebe2294ecd0e0f08eab7690d2a6ee69"), 2);
        assert_eq!(server.integer("DBSIZE"), 2);
    }

    a_request_that_one_limit_refuses_is_counted_in_neither {
        let server = Server::start();
        let nginx = Nginx::start(&server, &[SMALL.as_slice(), &[LONG_TIMEOUT]].concat());
        let from = |address, key| nginx.get(&[("X-Forwarded-For", address), ("X-Api-Key", key)]);
        for _ in 0..2 {
            assert_eq!(from("192.0.2.1", "secret").status, 200);
        }
        let refused = from("192.0.2.1", "secret");
        assert_eq!(refused.status, 429);
        let wait = refused.retry_after.expect("a wait");
        assert!((61..=3_600).contains(&wait), "{wait}");
        assert_eq!(refused.limit, Some(format!(r#""address-1m";r=1, "key-1h";r=0;t={wait}"#)));
        assert_eq!(from("192.0.2.1", "another").status, 200);
        let refused = from("192.0.2.1", "another");
        assert_eq!(refused.limit.as_deref().map(|limit| limit.contains(r#""key-1h";r=1"#)), Some(true));
        assert_eq!((refused.status, refused.retry_after.is_some_and(|wait| wait <= 60)), (429, true));
        assert_eq!(from("192.0.2.2", "another").status, 200);
    }

    of_a_burst_through_two_servers_exactly_the_limit_passes {
        let server = Server::start();
        // An hour: the burst may take longer than a minute on a busy machine.
        let changes = [(r#""LOG", 100, 60"#, r#""LOG", 100, 3600"#), LONG_TIMEOUT];
        let both = [Nginx::start(&server, &changes), Nginx::start(&server, &changes)];
        let statuses: Vec<u16> = thread::scope(|scope| {
            let senders: Vec<_> = (0..20)
                .map(|sender| &both[sender % 2])
                .map(|nginx| scope.spawn(|| [(); 10].map(|()| nginx.get(&[]).status)))
                .collect();
            senders.into_iter().flat_map(|sender| sender.join().expect("answers")).collect()
        });
        let count = |status| statuses.iter().filter(|other| **other == status).count();
        assert_eq!((count(200), count(429)), (100, 100));
    }

    a_page_of_its_own_for_429_is_not_counted_as_a_request {
        let server = Server::start();
        let nginx = Nginx::start(&server, &[SMALL.as_slice(), &[LONG_TIMEOUT]].concat());
        for _ in 0..3 {
            assert_eq!(nginx.get(&[]).status, 200);
        }
        let refused_by_redis = || -> i64 { server.info("rl_all_limited").parse().expect("a number") };
        let before = refused_by_redis();
        let refused = nginx.get(&[]);
        assert_eq!((refused.status, refused.body.as_str()), (429, "/busy"));
        assert!(refused.limit.is_some() && refused.retry_after.is_some(), "{refused:?}");
        assert_eq!(refused_by_redis(), before + 1);
    }

    addresses_of_one_ipv6_network_share_a_limit_and_a_mapped_address_is_that_ipv4_address {
        let server = Server::start();
        let nginx = Nginx::start(&server, &[LONG_TIMEOUT]);
        for address in ["2001:db8:0:9::1", "2001:db8:0:9:8000::", "::ffff:192.0.2.1", "192.0.2.1"] {
            assert_eq!(nginx.get(&[("X-Forwarded-For", address)]).status, 200);
        }
        assert_eq!(server.integer("EXISTS address:2001:0db8:0000:0009::/64 address:192.0.2.1"), 2);
        assert_eq!(server.integer("DBSIZE"), 2);
    }

    a_limit_of_0_is_answered_403_and_not_asked_to_come_again {
        let server = Server::start();
        let nginx = Nginx::start(&server, &[(r#""LOG", 100, 60"#, r#""LOG", 0, 60"#), LONG_TIMEOUT]);
        let answer = nginx.get(&[]);
        assert_eq!((answer.status, answer.retry_after), (403, None));
        assert_eq!(answer.limit.as_deref(), Some(r#""address-1m";r=0;t=0"#));
    }

    a_connection_serves_one_request_after_another {
        let server = Server::start();
        let nginx = Nginx::start(&server, &[LONG_TIMEOUT]);
        let connections = || -> i64 { server.info("total_connections_received").parse().expect("a number") };
        assert_eq!(nginx.get(&[]).status, 200);
        let before = connections();
        for _ in 0..10 {
            assert_eq!(nginx.get(&[]).status, 200);
        }
        assert_eq!(connections() - before, 1, "the one that asks");
    }

    requests_pass_without_fields_or_are_answered_503_while_redis_is_away {
        let server = Server::start();
        let open = Nginx::start(&server, &[LONG_TIMEOUT]);
        let closed = Nginx::start(&server, &[LONG_TIMEOUT, FAIL_CLOSED]);
        for nginx in [&open, &closed] {
            assert!(nginx.get(&[]).limit.is_some());
        }
        drop(server);
        for (nginx, status) in [(&open, 200), (&closed, 503)] {
            let answer = nginx.get(&[]);
            assert_eq!((answer.status, answer.limit, answer.policy), (status, None, None));
            assert!(nginx.process.log().contains("Redis does not decide"));
        }
    }

    a_redis_that_does_not_answer_is_not_waited_for {
        let server = Server::start();
        let nginx = Nginx::start(&server, &[FAIL_CLOSED]);
        wait_for("a request to be counted", || nginx.get(&[]).limit.is_some());
        server.freeze();
        assert_eq!(nginx.get(&[]).status, 503);
        server.thaw();
        wait_for("requests to be limited again", || nginx.get(&[]).limit.is_some());
    }

    a_connection_that_broke_is_made_anew {
        let server = Server::start();
        let nginx = Nginx::start(&server, &[LONG_TIMEOUT]);
        assert!(nginx.get(&[]).limit.is_some());
        assert!(server.integer("CLIENT KILL TYPE normal") > 0);
        wait_for("requests to be limited again", || nginx.get(&[]).limit.is_some());
    }
}

#[test]
fn the_configuration_and_its_lua_have_at_most_sixty_lines() {
    let lines =
        [include_str!("../../examples/nginx/limit.conf"), include_str!("../../examples/nginx/limit.lua")];
    assert!(lines.map(|file| file.lines().count()).iter().sum::<usize>() <= 60);
}
