#!/bin/sh
# Holds the lab's queue management against the kernel's qdiscs: four CUBIC flows through
# 10 Mb/s and 20 ms, once behind tbf with a qdisc of the kernel, once behind the lab's
# link. Run it in a guest:
#
#   go run ./packaging/kernels --kernels 6.12 --script packaging/kernels/scripts/aqm.sh
#
# It prints, for each, the packets dropped (marked with ECN), and the median and the 95th
# percentile of the queue's delay: of the qdisc from its backlog every 0.1 s,
# of the link from its packets.
#
#   a ──── r ════ 10 Mb/s, 10 ms ════ b      and 10 ms back
seconds=${AQM_SECONDS:-20}
rate=10000000

quantiles() { # bytes, one a line, to ms
	sort -n | awk -v rate=$rate '{ v[NR] = $1 * 8000 / rate } END { printf "p50 %.1f ms, p95 %.1f ms", v[int(NR*0.5)+1], v[int(NR*0.95)+1] }'
}

for name in a r b; do
	ip netns add $name
	ip -n $name link set lo up
done
wire() { # netns device netns device
	ip -n "$1" link add name "$2" type veth peer name "$4" netns "$3"
	ip -n "$1" link set "$2" gso_max_segs 1
	ip -n "$3" link set "$4" gso_max_segs 1
	ip -n "$1" link set "$2" up
	ip -n "$3" link set "$4" up
}
wire a wan r to-a
wire r to-b b wan
ip -n a addr add 10.1.0.1/24 dev wan
ip -n r addr add 10.1.0.2/24 dev to-a
ip -n r addr add 10.2.0.2/24 dev to-b
ip -n b addr add 10.2.0.1/24 dev wan
ip -n a route add default via 10.1.0.2
ip -n b route add default via 10.2.0.2
ip netns exec r sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
# Both ways' delay on the way back: tbf takes the place of the other one.
ip netns exec r tc qdisc add dev to-a root netem delay 20ms limit 100000

for ecn in noecn ecn; do
	for name in a b; do
		ip netns exec $name sh -c "echo $([ $ecn = ecn ] && echo 1 || echo 0) > /proc/sys/net/ipv4/tcp_ecn"
	done
	for qdisc in codel fq_codel pie; do
		ip netns exec r tc qdisc replace dev to-b root handle 1: tbf rate ${rate}bit burst 9000 limit 3000000
		ip netns exec r tc qdisc add dev to-b parent 1:1 handle 2: $qdisc limit 1000 $ecn || continue
		ip netns exec b iperf3 -s -1 >/dev/null 2>&1 &
		sleep 2
		ip netns exec a iperf3 -c 10.2.0.1 -C cubic -P 4 -t "$seconds" >/dev/null &
		flow=$!
		sleep 5
		: > /tmp/backlog
		while kill -0 $flow 2>/dev/null; do
			ip netns exec r tc -s qdisc show dev to-b | sed -n '/^qdisc '$qdisc'/,$s/.*backlog \([0-9]*\)b.*/\1/p' >> /tmp/backlog
			sleep 0.1
		done
		wait $flow
		dropped=$(ip netns exec r tc -s qdisc show dev to-b | sed -n '/^qdisc '$qdisc'/,$p' | sed -n 's/.*dropped \([0-9]*\),.*/\1/p' | head -1)
		marked=$(ip netns exec r tc -s qdisc show dev to-b | sed -n 's/.*ecn_mark \([0-9]*\).*/\1/p' | head -1)
		echo "RESULT kernel $qdisc $ecn: $dropped dropped ($marked marked), $(quantiles < /tmp/backlog)"
		ip netns exec r tc qdisc del dev to-b root
	done
done

for ecn in off on; do
	for aqm in codel fq_codel pie; do
		longhaul lab up --socket /tmp/lab.sock --rate ${rate}bit --rtt 20ms --queue 1500kB --aqm $aqm --ecn $ecn --host-ecn $ecn > /tmp/lab.log 2>&1 &
		lab=$!
		until longhaul lab status --socket /tmp/lab.sock >/dev/null 2>&1; do sleep 0.2; done
		longhaul lab exec --socket /tmp/lab.sock host-b -- iperf3 -s -1 >/dev/null 2>&1 &
		sleep 2
		longhaul lab exec --socket /tmp/lab.sock host-a -- iperf3 -c 10.20.20.10 -C cubic -P 4 -t "$seconds" >/dev/null
		longhaul lab status --socket /tmp/lab.sock --json > /tmp/status.json
		figure() { sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p" /tmp/status.json | head -1; }
		echo "RESULT lab $aqm $ecn: $(figure aqm_drops) dropped ($(figure packets_marked) marked), p50 $(figure queue_delay_p50_ms) ms, p95 $(figure queue_delay_p95_ms) ms"
		kill -INT $lab
		wait $lab
	done
done
