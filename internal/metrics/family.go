package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// family is one metric name: what Prometheus calls a metric family.
type family struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	desc       *prometheus.Desc
}

// families are all metrics, in the order of their declaration.
var families []*family

func newFamily(kind prometheus.ValueType, name, help string, labels []string) *family {
	name = "tcpilot_" + name
	f := &family{name, help, kind, labels, prometheus.NewDesc(name, help, labels, nil)}
	families = append(families, f)
	return f
}

func counter(name, help string, labels ...string) *family {
	return newFamily(prometheus.CounterValue, name, help, labels)
}

func gauge(name, help string, labels ...string) *family {
	return newFamily(prometheus.GaugeValue, name, help, labels)
}

// All metrics of tcpilot. docs/metrics.md is generated from these.
var (
	buildInfo = gauge("build_info", "Always 1; the labels say what runs.", "version", "learner")

	connections = counter("connections_total", "Connections classified, by rule and direction (outgoing, incoming).", "rule", "direction")
	decisions   = counter("decisions_total", "Connections, by what they got and why (troubleshooting.md lists the reasons); one that got a policy also counts under what was done with its congestion control.", "reason")
	setErrors   = counter("set_errors_total", "Options that the kernel refused on a connection, by field.", "field")
	armFailures = counter("arm_failures_total", "Congestion controls that the kernel refused on a connection.", "cc")
	events      = counter("connection_events_total", "Events (rto, retransmit, state) of the share of connections that a rule watches, and (rto, rto-answered) of those whose timeouts it answers (on_rto).", "rule", "event")

	controlLoaded      = gauge("congestion_control_loaded", "1 if the congestion control, of tcpilot's own or a user's, is loaded, 0 if not.", "cc")
	controlConnections = gauge("congestion_control_connections", "Sockets that use the loaded congestion control, listening ones included; sockets that still use a version from before an upgrade are not counted.", "cc")

	limitTotal       = gauge("rate_limit_bytes_per_second", "Rate limit in force of all connections of the rule together, of payload. Absent if the rule has none.", "rule")
	limitConnection  = gauge("rate_limit_connection_bytes_per_second", "Rate limit in force of each connection of the rule. Absent if the rule has none.", "rule")
	limitMeasured    = gauge("rate_limit_measured_bytes_per_second", "Rate at which the connections under the rule's limit send together, payload with retransmissions, in about the last second.", "rule")
	limitSent        = counter("rate_limit_sent_bytes_total", "Payload with retransmissions that connections have sent under the rule's limit.", "rule")
	limitConnections = gauge("rate_limit_connections", "Connections under the rule's limit.", "rule")
	limitActive      = gauge("rate_limit_active_connections", "Connections under the rule's limit that send now, among which it is divided.", "rule")

	bufferRaised    = gauge("buffer_limits_raised", "Network namespaces in which the maximum of a sysctl (net.ipv4.tcp_rmem, net.ipv4.tcp_wmem) is raised now.", "sysctl")
	bufferRaises    = counter("buffer_limit_raises_total", "Raises of the maximum of a sysctl because connections were bound by it.", "sysctl")
	bufferTakenBack = counter("buffer_limit_raises_taken_back_total", "Raised maxima of a sysctl that went back because TCP was short of memory.", "sysctl")

	hostSysctls    = gauge("host_profile_sysctls", "Sysctls that have their value from the host profile now, in all network namespaces. Absent unless the profile is used.")
	hostRoutes     = gauge("host_profile_routes", "Routes that the host profile has changed (host.usec_timestamps) and not taken back, in all network namespaces.")
	hostRoutesLeft = gauge("host_profile_routes_left", "Routes within host.usec_timestamps that are left as they are; tcpilot status says why.")

	pods           = gauge("pods", "Pods that are known.")
	podConnections = gauge("pod_connections", "Connections of the pod that have ended since the daemon read its record, without those that rules leave alone. A gauge, because a pod may enter and leave \"other\".", "pod")
	podLimited     = gauge("pod_bandwidth_limited_pods", "Pods that have a limit of bandwidth, by direction (egress, ingress) as the pod sees it. Absent if there never was one.", "direction")
	podPassed      = counter("pod_bandwidth_passed_bytes_total", "Bytes on the wire that passed limits of pods, by direction.", "direction")
	podMarked      = counter("pod_bandwidth_marked_packets_total", "Packets, after segmentation, that passed limits of pods with a mark of congestion (ECN), by direction.", "direction")
	podDropped     = counter("pod_bandwidth_dropped_packets_total", "Packets, after segmentation, that were dropped because a pod exceeded its limit, by direction.", "direction")

	podLimit        = gauge("pod_limit_bytes_per_second", "Limit of the pod's bandwidth, by direction (egress, ingress) as the pod sees it. Of the pods whose limits dropped most.", "pod", "direction")
	podLimitPassed  = gauge("pod_limit_passed_bytes", "Bytes on the wire that passed the pod's limit since it came into force. A gauge, because a pod may enter and leave \"other\".", "pod", "direction")
	podLimitMarked  = gauge("pod_limit_marked_packets", "Packets, after segmentation, that passed the pod's limit with a mark of congestion (ECN).", "pod", "direction")
	podLimitDropped = gauge("pod_limit_dropped_packets", "Packets, after segmentation, that were dropped because the pod exceeded its limit.", "pod", "direction")

	podBigPods    = gauge("pod_big_tcp_pods", "Pods that can have packets above 64 KB (BIG TCP). Absent unless pods.big_tcp is on.")
	podBigPackets = counter("pod_big_tcp_packets_total", "Packets of pods above 64 KB, before segmentation, by direction (egress, ingress) as the pod sees it. Absent unless pods.big_tcp is on.", "direction")

	podRouted = counter("pod_packets_routed_total", "Packets of pods that were routed without the host's stack, by way (pod-to-pod, pod-to-wire, wire-to-pod); one of several segments counts once. Absent unless pods.host_routing is on.", "way")
	podLeft   = counter("pod_packets_left_total", "Packets of pods that host routing left to the host's stack, by reason (pods.md lists them). Absent unless pods.host_routing is on.", "reason")

	ringSubmitted = counter("ring_samples_submitted_total", "Samples that the BPF programs put into the ring buffer.")
	ringDropped   = counter("ring_samples_dropped_total", "Samples lost because the ring buffer was full.")
	ringReceived  = counter("ring_samples_received_total", "Samples read from the ring buffer.")
	ringMalformed = counter("ring_samples_malformed_total", "Records read from the ring buffer that are not samples of this version.")
	unseen        = counter("connections_unseen_total", "Connections without a sample of their end: untracked (no room to remember them), forgotten (their socket began another), missed (the kernel did not show the end), thinned (there were many, and the samples of others stand for them; some of these have a sample later, for their losses), backwards (the kernel had reset their counters).", "reason")

	samples      = counter("samples_total", "Samples seen by the engine, by kind (close, interval, failed-connect).", "kind")
	sampled      = counter("sampled_connections_total", "Connections that the samples stand for, by kind: if a host ends thousands a second, one sample stands for several.", "kind")
	ignored      = counter("samples_ignored_total", "Samples that changed no belief, by reason.", "reason")
	unattributed = counter("samples_unattributed_total", "Samples of a class that no longer exists.")
	learned      = counter("samples_learned_total", "Samples that changed a belief.")

	ticks         = counter("engine_ticks_total", "Rounds of deciding and writing policies.")
	tickSeconds   = counter("engine_tick_seconds_total", "Time spent deciding and writing policies.")
	snapshotTime  = gauge("engine_snapshot_timestamp_seconds", "When the state shown here was taken, Unix time.")
	policyReasons = counter("policy_decisions_total", "Policies decided on, by reason.", "reason")
	policyWrites  = counter("policy_writes_total", "Policies written to the kernel.")
	policyErrors  = counter("policy_write_errors_total", "Policies that could not be written.")
	storeErrors   = counter("store_errors_total", "Failed attempts to save what was learned.")
	storeSaved    = gauge("store_saved_timestamp_seconds", "When what was learned was last saved, Unix time; absent before the first time.")
	pathCount     = gauge("paths", "Paths in memory.")
	networkPaths  = gauge("network_type_paths", "Paths in memory by the type of network that their connections show.", "type")
	pathLimit     = gauge("paths_limit", "Greatest number of paths that are kept.")
	pathEvicted   = counter("paths_evicted_total", "Paths dropped because of the limit.")
	yields        = gauge("yield_info", "1 for each field that tcpilot does not set because the administrator changed its sysctl.", "field", "sysctl")
	peerSent      = counter("peer_options_sent_total", "SYNs and SYN-ACKs sent with the peer option.")
	peerSeen      = counter("peer_options_seen_total", "SYNs and SYN-ACKs with the peer option that arrived and were read.")
	peerResent    = counter("peer_option_syns_resent_total", "Connections whose SYN was sent again without the peer option.")
	peerWithout   = counter("peer_options_omitted_total", "Connections that began without the peer option because their host had answered a SYN only without it.")

	rtoMinPaths  = gauge("rto_min_paths", "Paths in memory by the RTO_MIN in seconds that their connections get, of rules that adapt it; 0.2 is the kernel's value.", "seconds")
	rtoMinBarred = gauge("rto_min_barred_paths", "Paths in memory on which a value of RTO_MIN in seconds, and shorter ones, are not used for a time.", "seconds")
	rtoMinBars   = counter("rto_min_barred_total", "How often a value of RTO_MIN in seconds was found too short for a path, because peers reported spurious retransmissions.", "seconds")
	adaptedPaths = gauge("adapted_paths", "Paths in memory whose new connections get a value of the field that was computed from the path's metrics.", "field")
	policerPaths = gauge("policer_paths", "Paths in memory on which a policer is suspected, or found, by state.", "state")
	firstPackets = counter("initial_window_packets_total", "Packets of windows that were raised by what their path has shown, initial ones and those that jumped after a round trip, by fate (arrived, lost). Windows that a rule sets do not count.", "fate")
	firstHalved  = counter("initial_windows_halved_total", "How often the windows of a path were halved because packets of raised ones were lost.")
	armState     = gauge("arm_state", "1 for the state (active, retired, missing) that a congestion control is in.", "cc", "state")
	armsRetired  = counter("path_arms_retired_total", "How often a guard retired a congestion control on a path because it did harm, left a path or rule to the default, or stopped the switching of running connections, by reason (reward-collapse, goodput-collapse, retransmit-storm, worse-than-default, marks-lost, switched-worse).", "reason")
	rulePaths    = gauge("rule_paths", "Paths learned under the rule.", "rule")
	ruleSamples  = counter("rule_samples_total", "Samples of the rule's connections.", "rule")
	ruleHoldOut  = gauge("rule_hold_out_ratio", "Share of the rule's connections left at kernel defaults to compare with.", "rule")
	ruleGain     = gauge("rule_gain_ratio", "By what factor the rule's connections are faster than the hold-out, over all its paths, in a mean that counts slow ones most. Absent until it has an interval.", "rule")
	ruleGainLow  = gauge("rule_gain_ratio_low", "Lower end of the 95 % interval of rule_gain_ratio, which is valid at any time.", "rule")
	ruleGainHigh = gauge("rule_gain_ratio_high", "Upper end of that interval.", "rule")
	ruleGainBy   = gauge("rule_gain_by_slices", "1 if rule_gain_ratio compares with slices of time held out, 0 if with single connections held out, because there are too few slices: then it may be wrong if connections overlap.", "rule")
	ruleLeft     = gauge("rule_left_to_default", "1 while the rule leaves its connections to kernel defaults because they did worse than the hold-out.", "rule")
	ruleRollout  = gauge("rule_rollout_ratio", "Share of the rule's connections, without its hold-out, that the rule applies to: less than 1 during a partial rollout, 0 after a guard ended it.", "rule")
	observing    = gauge("observing", "1 in mode observe, in which nothing is set on any connection, else 0.")
	rolledBack   = counter("rollbacks_total", "Rollouts that guards set to 0.")

	pathSamples     = gauge("path_samples", "Samples of the path. A gauge, because a path may enter and leave \"other\".", pathLabels...)
	pathSRTT        = gauge("path_srtt_seconds", "Smoothed round-trip time of the path.", pathLabels...)
	pathMinRTT      = gauge("path_min_rtt_seconds", "Least round-trip time of the path in the 5 to 10 minutes before path_measured_timestamp_seconds.", pathLabels...)
	pathRate        = gauge("path_delivery_rate_bytes_per_second", "Greatest delivery rate of the path, not limited by the application, in the 1 to 2 minutes before path_measured_timestamp_seconds.", pathLabels...)
	pathReceiveRate = gauge("path_receive_rate_bytes_per_second", "Greatest rate at which a connection of the path received, in the 1 to 2 minutes before path_measured_timestamp_seconds.", pathLabels...)
	pathActive      = gauge("path_active_connections", "Established connections of the path now, if they are counted (adapt: [cwnd_clamp]; from a round-trip time of 0.5 ms on also [init_cwnd], [resume_cwnd] and [max_pacing_rate] unless a busy host follows only a share of them).", pathLabels...)
	pathRateLimit   = gauge("path_rate_limit_bytes_per_second", "Rate limit of a policer on the path: the greatest rate of payload at which the path's paced connections together lost nothing. Absent if none was found.", pathLabels...)
	pathCarried     = gauge("path_carried_packets", "Most packets that the path's connections had in flight together without a loss in the 15 to 30 seconds before path_measured_timestamp_seconds: what raised windows are made of.", pathLabels...)
	pathSsthresh    = gauge("path_ssthresh_packets", "Greatest slow start threshold of the path's connections in the 15 to 30 seconds before path_measured_timestamp_seconds; of those without one, their bandwidth-delay product.", pathLabels...)
	pathLoss        = gauge("path_loss_ratio", "Share of the path's recent data packets that were lost.", pathLabels...)
	pathMeasured    = gauge("path_measured_timestamp_seconds", "When the path's latest sample was taken, Unix time.", pathLabels...)
	pathHoldOut     = gauge("path_hold_out_connections", "Scored connections of the path that were left at kernel defaults.", pathLabels...)
	pathGain        = gauge("path_gain_ratio", "By what factor the path's connections are faster than the hold-out, in a mean that counts slow ones most; absent until it has an interval.", pathLabels...)
	pathGainLow     = gauge("path_gain_ratio_low", "Lower end of the 95 % interval of path_gain_ratio, which is valid at any time.", pathLabels...)
	pathGainHigh    = gauge("path_gain_ratio_high", "Upper end of that interval.", pathLabels...)
	pathGainBy      = gauge("path_gain_by_slices", "1 if path_gain_ratio compares with slices of time held out, 0 if with single connections held out, because there are too few slices: then it may be wrong if connections overlap.", pathLabels...)
	pathLeft        = gauge("path_left_to_default", "1 while the path is left to kernel defaults because its connections did worse than the hold-out.", pathLabels...)

	pathArmWeight = gauge("path_arm_weight", "Share of the path's next connections that get the congestion control, 0 to 1; for \"other\" the mean over its paths, weighted by samples.", armLabels...)
	pathArmCount  = gauge("path_arm_connections", "Scored connections of the path with the congestion control.", armLabels...)
	pathArmGreedy = gauge("path_arm_greedy_connections", "The part of path_arm_connections that got it while it was the best known.", armLabels...)
	pathArmReward = gauge("path_arm_reward_mean", "Believed reward, a natural logarithm.", armLabels...)
	pathArmStdDev = gauge("path_arm_reward_stddev", "Standard deviation of that belief; absent if the learner has none.", armLabels...)
	pathArmMinRTT = gauge("path_arm_min_rtt_seconds", "Least round-trip time seen with the congestion control.", armLabels...)
	pathArmRate   = gauge("path_arm_delivery_rate_bytes_per_second", "Greatest delivery rate seen with the congestion control.", armLabels...)

	programRuns    = counter("program_runs_total", "Runs of a BPF program; absent unless the kernel counts them (kernel.bpf_stats_enabled).", "program")
	programSeconds = counter("program_run_seconds_total", "Run time of a BPF program; absent unless the kernel counts it.", "program")
	datapathUp     = gauge("datapath_up", "1 if the datapath's counters could be read for this scrape; without them their metrics are absent.")
)

var (
	// pathLabels name a path. scope is the network namespace's cookie, empty if all
	// namespaces share what is learned.
	pathLabels = []string{"rule", "prefix", "scope"}
	armLabels  = append(slices.Clone(pathLabels), "cc")
)
