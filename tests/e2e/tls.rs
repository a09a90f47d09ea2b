//! Envoy as a client over mutual TLS, both as docs/tls.md shows them.

use crate::support::envoy::Config;
use crate::support::service::{self, Tidegate};
use crate::support::tls::{Authority, Files};
use crate::support::{Gateway, Watched, eventually, repository};
use serde_json::{Value, json};

const GATEWAY: &str = "spiffe://mesh.example/ns/gateways/sa/envoy";
const LIMITER: &str = "spiffe://mesh.example/ns/limiter/sa/tidegate";

/// What Envoy and tidegate find where the page has their certificates.
struct Certificates {
    envoy: Files,
    tidegate: Files,
}

impl Certificates {
    fn new(of_envoy: &str, of_tidegate: &str) -> Self {
        let certificates = Self { envoy: Files::new(), tidegate: Files::new() };
        certificates.issue(&Authority::new(), of_envoy, of_tidegate);
        certificates
    }

    /// Writes those of one root, with these SPIFFE ids and no other names.
    fn issue(&self, ca: &Authority, of_envoy: &str, of_tidegate: &str) {
        for (files, id) in [(&self.envoy, of_envoy), (&self.tidegate, of_tidegate)] {
            files.write("ca.crt", &ca.pem());
            files.write_pair("tls", &ca.client(&[id]));
        }
    }

    /// The page's `tls`.
    fn tls(&self) -> Value {
        let text = std::fs::read_to_string(repository().join("docs/tls.md")).unwrap();
        let shown = text.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
        let folder = self.tidegate.folder().to_str().unwrap();
        let page: Value = serde_yaml::from_str(&shown.replace("/etc/tidegate/tls", folder)).unwrap();
        page["tls"].clone()
    }

    fn tidegate(&self) -> Tidegate {
        let mut config = service::config();
        config["tls"] = self.tls();
        Tidegate::start(&config)
    }

    fn gateway(&self, change: impl FnOnce(&mut Config)) -> Watched<Gateway> {
        Gateway::before(self.tidegate(), |envoy| {
            envoy.connect_by_tls(self.envoy.folder());
            change(envoy);
        })
    }
}

/// Envoy asks whatever the health, and denies when it gets no answer.
fn bold(envoy: &mut Config) {
    envoy.limiter().as_object_mut().unwrap().remove("health_checks");
    envoy.ext_authz()["failure_mode_allow"] = json!(false);
}

#[test]
fn envoy_checks_over_mutual_tls_and_so_does_its_health_check() {
    let certificates = Certificates::new(GATEWAY, LIMITER);
    let gateway = certificates.gateway(|_| ());
    assert_eq!(gateway.stranger().statuses("/v1/hello", 5), [200, 200, 200, 429, 429]);
    let counted = ["ok", "denied", "error"].map(|name| gateway.envoy.counted(name));
    assert_eq!(counted, [3, 2, 0]);
    assert!(gateway.envoy.stat("cluster.limiter.ssl.handshake") >= 1);
    assert!(gateway.envoy.stat("cluster.limiter.health_check.success") >= 1);
    assert_eq!(gateway.envoy.stat("cluster.limiter.health_check.failure"), 0);
}

#[test]
fn certificates_are_replaced_while_envoy_is_connected_and_no_check_fails() {
    let certificates = Certificates::new(GATEWAY, LIMITER);
    let gateway = certificates.gateway(|_| ());
    let caller = gateway.user("enterprise");
    assert_eq!(caller.get("/v1/hello").status, 200);
    let connections = gateway.envoy.stat("cluster.limiter.ssl.handshake");
    // Of another root, which Envoy does not trust: only connections that stand can go on.
    certificates.tidegate.write_pair("tls", &Authority::new().client(&[LIMITER]));
    eventually("the new certificates are read", || {
        gateway.tidegate.child().err().contains("certificates were changed").then_some(())
    });
    assert_eq!(caller.statuses("/v1/hello", 10), [200; 10]);
    assert_eq!(gateway.envoy.stat("cluster.limiter.ssl.handshake"), connections);
    assert_eq!(gateway.envoy.counted("error"), 0);
}

#[test]
fn an_envoy_with_another_spiffe_id_is_refused() {
    let certificates = Certificates::new("spiffe://mesh.example/ns/others/sa/envoy", LIMITER);
    let gateway = certificates.gateway(bold);
    assert_ne!(gateway.user("standard").get("/v1/hello").status, 200);
    assert_eq!((gateway.envoy.counted("ok"), gateway.envoy.counted("error")), (0, 1));
    eventually("the refusal is said", || {
        let log = gateway.tidegate.child().err();
        log.contains("has spiffe://mesh.example/ns/others/sa/envoy, which client_spiffe_ids does not name")
            .then_some(())
    });
}

#[test]
fn an_envoy_takes_no_other_limiter_and_none_in_plain_text() {
    let certificates = Certificates::new(GATEWAY, "spiffe://mesh.example/ns/others/sa/tidegate");
    let gateway = certificates.gateway(bold);
    assert_ne!(gateway.user("standard").get("/v1/hello").status, 200);
    assert_eq!((gateway.envoy.counted("ok"), gateway.envoy.counted("error")), (0, 1));
    assert!(gateway.envoy.stat("cluster.limiter.ssl.fail_verify_san") >= 1);

    let plain = Gateway::before(certificates.tidegate(), bold);
    assert_ne!(plain.user("standard").get("/v1/hello").status, 200);
    assert_eq!((plain.envoy.counted("ok"), plain.envoy.counted("error")), (0, 1));
}
