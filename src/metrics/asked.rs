//! Values that somebody else keeps, and that are asked for when the metrics are read.

use super::catalogue::{Family, Kind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::borrow::Cow;
use std::fmt;

/// What a family is to be told as: the value of its one label, where it has one, and the number.
pub type Values = Vec<(Cow<'static, str>, f64)>;

/// A family that is asked for.
pub(super) struct Asked {
    pub(super) family: Family,
    pub(super) values: Box<dyn Fn() -> Values + Send + Sync>,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("family", &self.family.name).finish_non_exhaustive()
    }
}

impl Collector for Asked {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Family { name, kind, help, labels, .. } = self.family;
        let told = match kind {
            Kind::Counter => MetricType::Counter,
            Kind::Info => MetricType::Info,
            Kind::Gauge | Kind::Histogram => MetricType::Gauge,
        };
        let mut encoder = encoder.encode_descriptor(name, &sentence(help), None, told)?;
        for (label, value) in (self.values)() {
            match labels.first() {
                Some((name, _)) if kind == Kind::Info => encoder.encode_info(&[(*name, label)])?,
                Some((name, _)) => tell(&mut encoder.encode_family(&[(*name, label)])?, kind, value)?,
                None => tell(&mut encoder, kind, value)?,
            }
        }
        Ok(())
    }
}

/// With a full stop, as the registry ends the help of others.
pub(super) fn sentence(help: &str) -> String {
    format!("{help}.")
}

fn tell(encoder: &mut MetricEncoder<'_>, kind: Kind, value: f64) -> fmt::Result {
    match kind {
        Kind::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(&(value as u64), None),
        _ if value.fract() == 0.0 && value.abs() < 9e15 => encoder.encode_gauge(&(value as i64)),
        _ => encoder.encode_gauge(&value),
    }
}
