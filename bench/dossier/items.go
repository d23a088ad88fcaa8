package main

// item is a criterion or scenario of RFC 9743.
type item struct {
	Section, Title string
	// Reason is why no cell tests the item, or what the cells leave out.
	Reason string
}

// items are sections 5 to 7 of RFC 9743, "Specifying New Congestion Control Algorithms",
// with its titles in British spelling.
var items = []item{
	{Section: "5.1.1", Title: "Protection against congestion collapse"},
	{Section: "5.1.2", Title: "Protection against bufferbloat"},
	{Section: "5.1.3", Title: "Protection against high packet loss"},
	{Section: "5.1.4", Title: "Fairness within the proposed congestion control algorithm"},
	{Section: "5.1.5", Title: "Short flows"},
	{Section: "5.2.1", Title: "Existing general-purpose congestion control",
		Reason: "QUIC's congestion control (RFC 9002) is not run: the lab has no QUIC. Its algorithm is that of Reno, which is run."},
	{Section: "5.2.2", Title: "Real-time congestion control",
		Reason: "The real-time flow keeps its rate. Controls that adapt (RFC 8298, RFC 8698, WebRTC's) are not run: the lab has no implementation of them."},
	{Section: "5.2.3", Title: "Short and long flows"},
	{Section: "5.3.1", Title: "Differences with congestion control principles",
		Reason: "Nothing to measure. docs/design/haul.md says where haul departs from RFC 2914: random loss below its floor is no signal of congestion, and on round trips of 250 ms and more it starts faster than slow start."},
	{Section: "5.3.2", Title: "Incremental deployment",
		Reason: "Nothing to measure. Only the sender changes; receivers, routers and the format of packets stay as they are. docs/cc.md says how it is loaded and removed."},
	{Section: "6.1", Title: "Paths with tail-drop queues"},
	{Section: "6.2", Title: "Tunnel behaviour",
		Reason: "Not run: the lab has no tunnels. The only explicit signal is ECN, for which RFC 6040 requires tunnels to copy marks; without marks the algorithm works as without ECN."},
	{Section: "6.3", Title: "Wired paths"},
	{Section: "6.4", Title: "Wireless paths"},
	{Section: "7.1", Title: "Active queue management",
		Reason: "L4S (RFC 9332) is not run: the algorithm never sends the codepoint of L4S, so such a queue treats it as classic traffic, and the emulated link has no dual queue."},
	{Section: "7.2", Title: "Operation with the envelope set by network circuit breakers"},
	{Section: "7.3", Title: "Paths with varying delay"},
	{Section: "7.4", Title: "Internet of Things and constrained nodes",
		Reason: "The rates of such links are run. Memory and power of the node are not: a node with a Linux kernel that loads BPF is hardly constrained."},
	{Section: "7.5", Title: "Paths with high delay"},
	{Section: "7.6", Title: "Misbehaving nodes"},
	{Section: "7.7", Title: "Extreme packet reordering"},
	{Section: "7.8", Title: "Transient events"},
	{Section: "7.9", Title: "Sudden changes in the path"},
	{Section: "7.10", Title: "Multipath transport",
		Reason: "Not run: the algorithm controls one path. The kernel's MPTCP would run it for each subflow without coupling (RFC 6356), so subflows that share a bottleneck count as several flows."},
	{Section: "7.11", Title: "Data centres",
		Reason: "Not run: the algorithm is meant for long paths. A data centre should use the control that its operator chose."},
}
