package examine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"longhaul/internal/find/pcap"
	"longhaul/internal/words/remedy"
)

// maxParts bounds the parts of what was left out that a sentence lists.
const maxParts = 5

// listed lists parts of what was left out.
func listed(parts []pcap.Part) string {
	var all []string
	for _, p := range parts[:min(len(parts), maxParts)] {
		all = append(all, p.String())
	}
	if len(parts) > maxParts {
		all = append(all, "others")
	}
	if last := len(all) - 1; last > 0 {
		return strings.Join(all[:last], ", ") + " and " + all[last]
	}
	return strings.Join(all, "")
}

// nothing is the error for a capture without a TCP packet, with what it has instead.
func nothing(path string, result *pcap.Result) error {
	parts := result.LeftOut.Parts()
	if len(parts) == 0 {
		return remedy.New(fmt.Errorf("%s: no packet is in the capture", path), "capture while data are moving")
	}
	return remedy.New(fmt.Errorf("%s: %w: it has %s", path, pcap.ErrNoTCP, listed(parts)), advice(parts))
}

// advice says how to get TCP packets in place of those left out.
func advice(parts []pcap.Part) string {
	if slices.ContainsFunc(parts, func(p pcap.Part) bool { return p.Reason == pcap.Unwanted }) {
		return "leave --local and --remote out to read all of it"
	}
	hidden := slices.IndexFunc(parts, func(p pcap.Part) bool { return p.HidesTCP() })
	if hidden < 0 {
		return "capture the TCP connection, on the device that carries it: tcpdump -i DEVICE -s 128 -w FILE tcp"
	}
	switch p := parts[hidden]; p.Reason {
	case pcap.HeadersCut:
		return "capture with tcpdump -s 128, which keeps whole headers"
	case pcap.WithoutTime:
		return "capture with tcpdump -w: simple packet blocks have no times, and another format does not bring them back"
	case pcap.Fragment:
		return "capture where the packets are whole: before they are fragmented, or at the receiving program's device"
	case pcap.UnreadLink:
		return linkAdvice(p.Content)
	default:
		return "capture inside of the tunnel, on its own device at one of its ends: tcpdump -i wg0 -s 128 -w FILE"
	}
}

// linkAdvice says how to get packets of a readable link type.
func linkAdvice(name string) string {
	if strings.Contains(name, "802.11") {
		return "capture on the wired side, or on the station's own device without monitor mode; or decrypt it first"
	}
	return "capture on a device of Ethernet or IP, or on all with tcpdump -i any"
}

// leftOut notes the packets that may be of TCP and are left out, if they are many.
func (e *Examiner) leftOut(result *pcap.Result) {
	var hidden []pcap.Part
	total := int64(0)
	for _, p := range result.LeftOut.Parts() {
		if p.HidesTCP() {
			hidden = append(hidden, p)
			total += p.Packets
		}
	}
	if total*10 > result.Packets {
		e.Note(fmt.Errorf("the capture also has %s, which are not examined", listed(hidden)))
	}
}

// oneWay says that the capture has one direction alone of its largest connection. It is an
// error if nothing else has data, or acknowledgements to tell their amount.
func (e *Examiner) oneWay(result *pcap.Result) error {
	most := result.Connections[0]
	if most.OneWay == "" {
		return nil
	}
	from, to, direction := most.Client, most.Server, 0
	if most.OneWay == pcap.Server {
		from, to, direction = to, from, 1
	}
	err := fmt.Errorf("the capture has one direction only: %d bytes from %v to %v, and no packet back", most.Directions[direction].Bytes, from, to)
	if slices.ContainsFunc(result.Connections, func(c *pcap.Connection) bool { return c.Directions[0].Delivered+c.Directions[1].Delivered > 0 }) {
		e.Note(err)
		return nil
	}
	return remedy.New(err, "capture both directions: with tcpdump -i any, or with a mirror port of both")
}

// handshakeNote says why the windows are unknown.
func handshakeNote(h *pcap.Handshake) error {
	if h.OptionsCut {
		return errors.New("the capture cuts off the options of the handshake, so the windows are unknown: capture with tcpdump -s 128")
	}
	return errors.New("the capture lacks the handshake, so the windows are unknown: capture from the connection's start")
}
