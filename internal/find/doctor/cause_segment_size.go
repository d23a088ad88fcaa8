package doctor

import (
	"fmt"
	"math"
	"net/netip"

	"longhaul/internal/words/units"
)

var segmentSizeCause = causeEntry{
	cause: SegmentSize, rule: segmentSize, relayed: true, remedies: segmentSizeRemedies, doubt: segmentSizeDoubt,
	sentence: limited("Packets are smaller than the path carries: that limits it to %s."),
}

// segmentSize: segments are smaller than the path carries, and packets or losses
// limit the connection.
func segmentSize(c *patient) *Finding {
	f, o := c.f, c.o
	size := f.MSS + f.Headers
	mtu := o.Path.MTU
	if o.Capture != nil && o.Capture.AgreedMSS > 0 {
		// The sender announces what its own device carries.
		size, mtu = o.Capture.AgreedMSS+f.Headers, o.Capture.SenderMSS+f.Headers
	}
	if f.MSS == 0 || mtu <= f.Headers || !c.sendsFull() || c.exchanges() || float64(size) >= 0.95*float64(mtu) {
		return nil
	}
	larger := float64(mtu-f.Headers) / float64(f.MSS)
	carries := "the path"
	if o.Capture != nil {
		carries = "the sender's device"
	}
	finding := &Finding{Cause: SegmentSize, Evidence: []string{
		fmt.Sprintf("packets have %d bytes, and %s carries %d", size, carries, mtu),
	}}
	if o.Path.ReverseMTU > 0 && o.Path.ReverseMTU < mtu {
		finding.Cause = AsymmetricMTU
		finding.Evidence = append(finding.Evidence,
			fmt.Sprintf("the way back carries %d: the receiver asks for segments of that size", o.Path.ReverseMTU))
	}
	// The trial with half the size shows how the goodput depends on the size.
	if t := o.SmallSegments; t != nil && o.Capacity != nil && t.GoodputBps > 0 && t.SegmentBytes > 0 && t.SegmentBytes < o.Capacity.SegmentBytes {
		exponent := math.Log(o.Capacity.GoodputBps/t.GoodputBps) / math.Log(o.Capacity.SegmentBytes/t.SegmentBytes)
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("segments of %.0f bytes in place of %.0f, in the mean, got %s in place of %s", t.SegmentBytes, o.Capacity.SegmentBytes, units.FormatRate(t.GoodputBps), units.FormatRate(o.Capacity.GoodputBps)))
		finding.pathShare = math.Pow(larger, min(max(exponent, 0), 1))
		finding.PredictedBps, finding.Next = c.goodput*finding.pathShare, "the path"
	}
	return finding
}

func segmentSizeRemedies(c *patient) []Remedy {
	_, prefix := c.far()
	mss := c.o.Path.MTU - c.headersOfSYN()
	if c.captured() {
		mss = c.o.Capture.SenderMSS + c.f.Headers - c.headersOfSYN()
	}
	return []Remedy{{
		Action: fmt.Sprintf("have the receiver announce an MSS of %d", mss), Place: Receiver,
		Command: fmt.Sprintf("longhaul route set --to %s --advmss %d", netip.PrefixFrom(c.o.Local.Addr(), c.o.Local.Addr().BitLen()), mss),
	}, {
		Action: "raise the MSS that the receiver announces, on the path", Place: Sender,
		Command: fmt.Sprintf("longhaul mss set --dev DEVICE --to %s --raise %d", prefix, mss),
		Others:  []string{"AIX, towards other networks: no -o tcp_mssdflt=" + fmt.Sprint(mss)},
	}}
}

func segmentSizeDoubt(c *patient) string {
	if c.o.Capture == nil {
		return ""
	}
	return "a capture does not show whether the path carries larger packets: " +
		c.live() + " --test on the sending host finds out"
}
