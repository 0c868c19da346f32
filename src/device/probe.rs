//! A first descriptor of a GPU that has none: what the driver says, what was measured, and the rest from the built-in
//! descriptor of the most similar GPU, each line with its source.
use super::{Ceilings, Constants, GpuInfo, Sustained};
use satune_extract::{arch_number, Descriptor, DescriptorError};

/// The text of a descriptor, and the built-in one that the estimates are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// TOML.
    pub text: String,
    /// Name of the built-in descriptor.
    pub similar: &'static str,
}

/// The built-in GPU that is most like this one: the same architecture and a similar number of multiprocessors; else the
/// nearest architecture.
fn similar(info: &GpuInfo) -> Option<(&'static str, Descriptor)> {
    Descriptor::names()
        .filter_map(|name| Some((name, Descriptor::load(name).ok()?)))
        .min_by_key(|(_, gpu)| (gpu.arch_number().abs_diff(arch_number(&info.arch)), gpu.sms.abs_diff(info.sms)))
}

/// Writes a descriptor named `name`.
///
/// # Errors
/// When the driver's numbers make none (a GPU without multiprocessors).
pub fn descriptor(
    name: &str,
    info: &GpuInfo,
    ceilings: Option<&Ceilings>,
    constants: Option<&Constants>,
) -> Result<Probed, DescriptorError> {
    let none = |reason: &str| DescriptorError::Malformed { path: info.name.clone(), reason: reason.into() };
    let (like, base) = similar(info).ok_or_else(|| none("there is no built-in descriptor to begin with"))?;
    let source = Descriptor::text(like).ok_or_else(|| none("there is no built-in descriptor to begin with"))?;
    // (field, value, where it is from); a zero is an answer that an old driver does not have.
    let mut known: Vec<(&str, String, &str)> = Vec::new();
    let mut driver = |field, value: u64| {
        if value > 0 {
            known.push((field, value.to_string(), "driver"));
        }
    };
    driver("sms", info.sms.into());
    driver("clock_mhz", info.clock_mhz.into());
    driver("shared_per_sm", info.shared_per_sm.into());
    driver("shared_per_block", info.shared_per_block.into());
    driver("shared_reserved", info.shared_reserved.into());
    driver("registers_per_sm", info.registers_per_sm.into());
    driver("threads_per_sm", info.threads_per_sm.into());
    driver("blocks_per_sm", info.blocks_per_sm.into());
    driver("l2_bytes", info.l2_bytes);
    let clusters: Vec<String> = info.max_clusters.iter().map(u32::to_string).collect();
    // Two transfers per clock.
    driver("dram_nominal_gbs", u64::from(info.memory_clock_mhz) * 2 * u64::from(info.bus_bits) / 8 / 1000);
    for field in ["cp_async", "tma"] {
        let since = if field == "tma" { 90 } else { 80 };
        known.push((field, (arch_number(&info.arch) >= since).to_string(), "architecture"));
    }
    if let Some(measured) = ceilings {
        known.push(("dram_gbs", format!("{:.0}", measured.copy_gbs), "measured: a copy"));
        let peak = 2.0 * f64::from(base.fp32_lanes) * f64::from(info.sms) * f64::from(info.clock_mhz) * 1e-6;
        if peak > 0.0 {
            let share = (measured.fma_tflops / peak).clamp(0.05, 1.0);
            known.push(("issue_efficiency", format!("{share:.3}"), "measured: independent multiply-adds"));
        }
    }
    if let Some(measured) = constants {
        // What cannot be is no measurement: a driver that counts no clocks leaves zeros.
        let mut measure = |field, value: f64, [least, most]: [f64; 2], how| {
            if (least..=most).contains(&value) {
                known.push((field, format!("{value:.3}"), how));
            }
        };
        let chain = "measured: loads that wait for each other";
        measure("latency_dram", measured.latency_dram, [100.0, 5000.0], chain);
        measure("latency_l2", measured.latency_l2, [50.0, 2000.0], chain);
        measure("latency_shared", measured.latency_shared, [10.0, 200.0], chain);
        measure("launch_us", measured.empty_us, [0.2, 50.0], "measured: an empty kernel");
        let l2 = measured.l2_gbs * 1e3 / measured.l2_mhz.max(1.0);
        measure("l2_bytes_per_clock", l2, [64.0, 65536.0], "measured: reads");
        let ratio = measured.read_gbs / ceilings.map_or(f64::INFINITY, |c| c.copy_gbs);
        measure("dram_read_ratio", ratio, [1.0, 1.5], "measured: reads and a copy");
        let share = |name: &str| {
            let found = measured.sustained.iter().find(|s| s.name == name);
            let peak =
                |s: &Sustained| base.tensor.as_ref().map_or(0.0, |t| t.f16) * f64::from(info.sms) * s.clock_mhz * 1e-6;
            found.map_or(0.0, |s| s.tflops / peak(s).max(1e-9))
        };
        measure("mma_share", share("mma_f16"), [0.05, 1.0], "measured: a second of mma.sync");
        measure("wgmma_share", share("wgmma_f16_n256"), [0.05, 1.0], "measured: a second of wgmma");
    }
    let mut text = format!(
        "# {}: made by `satune probe`. A line without a source is an estimate of the descriptor {like}; `satune\n# calibrate` fits the estimates to measurements.\n",
        info.name
    );
    // What is known of the other GPU's rates says nothing of this one's: its spreads, the last table, are left out.
    for line in source.lines().take_while(|line| line.trim() != "[spread]") {
        let key = line.split('=').next().unwrap_or("").trim();
        let value = match key {
            "name" => Some((format!("{name:?}"), "")),
            "full_name" => Some((format!("{:?}", info.name), "driver")),
            "arch" => Some((format!("{:?}", info.arch), "driver")),
            "arch_features" => Some((format!("{:?}", info.arch_features()), "architecture")),
            _ => known.iter().find(|k| k.0 == key).map(|k| (k.1.clone(), k.2)),
        };
        // The comments are of the other GPU's numbers.
        match value {
            Some((value, "")) => text.push_str(&format!("{key} = {value}\n")),
            Some((value, source)) => text.push_str(&format!("{key} = {value} # {source}\n")),
            // The driver's stand behind another line of it.
            None if key == "max_clusters" || line.starts_with('#') || line.is_empty() => {}
            None => text.push_str(&format!("{line}\n")),
        }
        if key == "blocks_per_sm" && !clusters.is_empty() {
            text.push_str(&format!("max_clusters = [{}] # driver: of 1, 2, 4, 8 blocks\n", clusters.join(", ")));
        }
    }
    Descriptor::parse(&text, name)?;
    Ok(Probed { text, similar: like })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown() -> GpuInfo {
        GpuInfo {
            name: "Some \"GPU\"".into(),
            arch: "sm_89".into(),
            sms: 60,
            clock_mhz: 2000,
            memory_clock_mhz: 9000,
            bus_bits: 256,
            l2_bytes: 32 << 20,
            shared_per_block: 101_376,
            max_clusters: vec![60, 30, 14],
            ..GpuInfo::default()
        }
    }

    #[test]
    fn a_descriptor_has_what_was_found_and_estimates_for_the_rest() {
        let ceilings = Ceilings { copy_gbs: 500.0, fma_tflops: 27.0, matrix_tflops: None };
        // A chain that a driver did not count, a share beyond what there is.
        let second = |name: &str, tflops| Sustained { name: name.into(), first_tflops: 0.0, tflops, clock_mhz: 2000.0 };
        let constants = Constants {
            empty_us: 2.5,
            read_gbs: 540.0,
            write_gbs: 500.0,
            l2_gbs: 4000.0,
            l2_mhz: 2000.0,
            latency_dram: 700.0,
            latency_l2: 0.0,
            latency_shared: 28.0,
            shared_bytes_per_clock: 128.0,
            cluster_barrier: Vec::new(),
            sustained: vec![second("mma_f16", 60.0), second("wgmma_f16_n256", 1e6)],
        };
        let probed = descriptor("mine", &unknown(), Some(&ceilings), Some(&constants)).unwrap();
        let gpu = Descriptor::parse(&probed.text, "mine").unwrap();
        assert_eq!((gpu.name.as_str(), gpu.full_name.as_str(), gpu.arch.as_str()), ("mine", "Some \"GPU\"", "sm_89"));
        assert_eq!((gpu.sms, gpu.clock_mhz, gpu.dram_gbs, gpu.dram_nominal_gbs), (60, 2000.0, 500.0, 576.0));
        assert!((gpu.issue_efficiency - 27.0 / 30.72).abs() < 1e-3);
        assert!(gpu.cp_async && !gpu.tma);
        assert_eq!([1, 2, 4, 8].map(|cluster| gpu.clustered(cluster)), [Some(60), Some(60), Some(56), None]);
        assert_eq!((gpu.latency_dram, gpu.latency_shared, gpu.launch_us), (700.0, 28.0, 2.5));
        assert_eq!((gpu.l2_bytes_per_clock, gpu.dram_read_ratio), (2000.0, 1.08));
        // The most similar of its architecture.
        assert_eq!(probed.similar, "l4");
        let like = Descriptor::load("l4").unwrap();
        assert_eq!((gpu.latency_l2, gpu.threads_per_sm), (like.latency_l2, like.threads_per_sm));
        let (of, like) = (gpu.tensor.unwrap(), like.tensor.unwrap());
        let share = 60.0 / (like.f16 * 60.0 * 2000.0 * 1e-6);
        assert!((of.mma_share - share).abs() < 1e-3 && of.wgmma_share == like.wgmma_share);
    }

    #[test]
    fn a_driver_without_answers_gives_no_descriptor() {
        let error = descriptor("x", &GpuInfo { clock_mhz: 200_000, ..unknown() }, None, None).unwrap_err().to_string();
        assert!(error.contains("clock_mhz is 200000"), "{error}");
    }
}
