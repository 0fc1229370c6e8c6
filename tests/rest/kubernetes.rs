//! The manifest of examples/kubernetes, and the compose file beside it: their parts fit each other and the image, and their commands
//! do what they are for.

use std::path::PathBuf;
use std::process::Command;

use harness::{Launch, Server, cli, module};
use tempfile::TempDir;
use yaml_rust2::{Yaml, YamlLoader};

use crate::file;

/// The objects of a kind in the manifest.
fn objects(kind: &str) -> Vec<Yaml> {
    let objects = YamlLoader::load_from_str(&file("examples/kubernetes/redis-rl.yaml")).expect("YAML");
    objects.into_iter().filter(|object| object["kind"].as_str() == Some(kind)).collect()
}

fn list(value: &Yaml) -> &[Yaml] {
    value.as_vec().map_or(&[], Vec::as_slice)
}

fn words(value: &Yaml) -> Vec<&str> {
    list(value).iter().map(|word| word.as_str().expect("a word")).collect()
}

/// The first container of a pod, which is the server, and the one that runs before it.
fn containers(deployment: &Yaml) -> (&Yaml, Option<&Yaml>) {
    let pod = &deployment["spec"]["template"]["spec"];
    (&pod["containers"][0], list(&pod["initContainers"]).first())
}

/// Where the image has the module.
fn path_in_the_image() -> String {
    let dockerfile = file("Dockerfile");
    let copy = dockerfile.lines().find(|line| line.starts_with("COPY --from=build")).expect("that line");
    let [.., from, folder] = copy.split(' ').collect::<Vec<_>>()[..] else { panic!("{copy}") };
    folder.to_owned() + from.rsplit('/').next().expect("a name")
}

#[test]
fn what_one_part_of_the_manifest_names_another_has() {
    let deployments = objects("Deployment");
    assert_eq!(deployments.len(), 2);
    let secret = file("examples/kubernetes/redis-rl.yaml");
    let secret = secret.split("create secret generic ").nth(1).and_then(|rest| rest.split(' ').next());
    for deployment in &deployments {
        let spec = &deployment["spec"];
        let pod = &spec["template"]["spec"];
        assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
        assert_eq!(spec["replicas"].as_i64(), Some(1));
        let volumes: Vec<&Yaml> = list(&pod["volumes"]).iter().map(|volume| &volume["name"]).collect();
        let (server, first) = containers(deployment);
        for mount in [Some(server), first].into_iter().flatten().flat_map(|one| list(&one["volumeMounts"])) {
            assert!(volumes.contains(&&mount["name"]), "{mount:?}");
        }
        let [.., option, password] = words(&server["args"])[..] else { panic!("{server:?}") };
        let variable = &server["env"][0];
        assert_eq!(
            (option, secret),
            ("--requirepass", variable["valueFrom"]["secretKeyRef"]["name"].as_str())
        );
        assert_eq!(password, format!("$({})", variable["name"].as_str().expect("a name")));
    }
    for service in objects("Service") {
        let labels = |deployment: &Yaml| deployment["spec"]["template"]["metadata"]["labels"].clone();
        let behind = deployments.iter().find(|each| labels(each) == service["spec"]["selector"]);
        let (server, _) = containers(behind.expect("a deployment"));
        assert_eq!(service["spec"]["ports"][0]["port"], server["ports"][0]["containerPort"]);
    }
}

#[test]
fn the_image_is_the_one_that_the_comment_builds_and_the_init_container_copies_from_it() {
    let deployments = objects("Deployment");
    let (own, _) = containers(&deployments[0]);
    let (_, first) = containers(&deployments[1]);
    let image = own["image"].as_str().expect("a name");
    let manifest = file("examples/kubernetes/redis-rl.yaml");
    assert!(manifest.contains(&format!("docker build -t {image} .")), "{image}");
    assert_eq!(image.rsplit(':').next(), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(first.expect("an init container")["image"].as_str(), Some(image));
    let loads = format!(r#"CMD ["--loadmodule", "{}"]"#, path_in_the_image());
    assert!(file("Dockerfile").contains(&loads), "{loads}");
}

#[test]
fn the_server_for_limits_is_the_same_in_manifest_and_compose_file_and_a_server_accepts_its_settings() {
    let deployments = objects("Deployment");
    let (own, _) = containers(&deployments[0]);
    let compose = YamlLoader::load_from_str(&file("examples/compose.yaml")).expect("YAML");
    let limits = &compose[0]["services"]["limits"];
    let args = words(&limits["command"]);
    assert_eq!(words(&own["args"])[..args.len()], args);
    assert_eq!(words(&limits["healthcheck"]["test"])[1..], words(&own["readinessProbe"]["exec"]["command"]));
    assert_eq!(args[..2], ["--loadmodule", &path_in_the_image()]);
    let settings: Vec<(&str, &str)> =
        args[2..].chunks(2).map(|pair| (pair[0].trim_start_matches("--"), pair[1])).collect();
    let server = Launch::server().and_then(|launch| launch.settings(&settings).module(module()).start());
    let server = server.expect("a server");
    // With this policy a full server refuses requests, and forgets none that it counted.
    let policy: Vec<String> =
        redis::from_redis_value(server.value("CONFIG GET maxmemory-policy")).expect("a name and a value");
    assert_eq!(policy, ["maxmemory-policy", "noeviction"]);
}

#[test]
fn the_init_container_adds_the_module_to_the_server_and_only_then_the_pod_is_ready() {
    let deployments = objects("Deployment");
    let (server, first) = containers(&deployments[1]);
    let first = first.expect("an init container");
    let mounted = first["volumeMounts"][0]["mountPath"].as_str().expect("a path").to_owned() + "/";
    let folder = TempDir::new().expect("a temporary folder");
    let volume = format!("{}/", folder.path().display());

    let command = words(&first["command"]);
    let [program, from, to] = command[..] else { panic!("{command:?}") };
    assert_eq!((from, to), (path_in_the_image().as_str(), mounted.as_str()));
    let copied = Command::new(program).arg(module()).arg(&volume).status().expect("cp");
    assert!(copied.success());

    let args = words(&server["args"]);
    let [option, path, ..] = args[..] else { panic!("{args:?}") };
    assert_eq!(option, "--loadmodule");
    let path = PathBuf::from(path.replacen(&mounted, &volume, 1));
    let with = Launch::server().and_then(|launch| launch.module(&path).start()).expect("a server");
    with.value("CONFIG SET requirepass secret");
    for deployment in &deployments {
        let succeeds = |probe: &str, server: &Server, password: &str| {
            let probe = words(&containers(deployment).0[probe]["exec"]["command"]);
            assert_eq!(probe[0], "redis-cli");
            let mut probing = Command::new(cli());
            probing.args(["-p", &server.port().to_string()]).args(&probe[1..]).env("REDISCLI_AUTH", password);
            probing.status().expect("redis-cli").success()
        };
        assert!(succeeds("readinessProbe", &with, "secret") && !succeeds("readinessProbe", &with, "wrong"));
        let without = Server::without_module();
        assert!(!succeeds("readinessProbe", &without, "") && succeeds("livenessProbe", &without, ""));
        assert!(succeeds("livenessProbe", &with, "wrong"));
        drop(without);
    }
}
