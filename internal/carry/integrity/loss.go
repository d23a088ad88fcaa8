package integrity

import "time"

// An exchange of 1 MiB has some 724 segments. So a path that loses 1 % loses
// seven of them, and fewer than two once in 170 exchanges. But an exchange
// fills the path, and may lose segments to a full queue, which is not a fault.
//
// A leg with notable loss is therefore tried again, with twice as much at three
// quarters of the achieved rate. No queue fills then. It is lossy if it still
// loses, not much less, and lossyShare of everything sent. A path that loses
// 0.01 % is called lossy once in 40 000 checks.
const (
	minLost    = 2      // segments, in each exchange,
	lossyFew   = 1000   // but one in a second exchange of at most so many
	lossyAgain = 0.001  // share of the second exchange,
	lossyStill = 1. / 4 // of the first one's
	lossyShare = 0.002  // of both
	calmRate   = 3.0 / 4
	calmBytes  = 2
)

// suspect reports whether the first exchange lost enough to require a second.
func (l *leg) suspect() bool {
	first := &l.Passes[0]
	return loses(first.lostUp(), lossyShare) || loses(first.lostDown(), lossyShare)
}

// loses returns the lossy direction of the leg, empty for none, and its share
// of lost segments.
func (l *leg) loses() (direction string, share float64) {
	if len(l.Passes) == 0 {
		return "", 0
	}
	first, last := &l.Passes[0], &l.Passes[len(l.Passes)-1]
	for _, d := range []struct {
		name        string
		first, last sent
	}{{upwards, first.lostUp(), last.lostUp()}, {downwards, first.lostDown(), last.lostDown()}} {
		all := sent{d.first.Segments + d.last.Segments, d.first.Lost + d.last.Lost}
		if !loses(d.first, lossyShare) || !d.last.stillLoses(d.first) || !loses(all, lossyShare) {
			continue
		}
		share = max(share, all.share())
		if direction == "" {
			direction = d.name
		} else {
			direction = bothWays
		}
	}
	return direction, share
}

func loses(s sent, share float64) bool {
	return s.Segments > 0 && s.Lost >= minLost && s.share() >= share
}

// stillLoses reports whether a second exchange confirms the loss of the first.
func (s sent) stillLoses(first sent) bool {
	return s.Lost >= minLost-1 && (s.Lost >= minLost || s.Segments <= lossyFew) &&
		s.share() >= max(lossyAgain, lossyStill*first.share())
}

// share is the share of lost segments.
func (s sent) share() float64 { return float64(s.Lost) / float64(max(s.Segments, 1)) }

// lostUp is the loss on the way up as the sender saw it. If a proxy is on the
// leg, the sender misses losses behind it; segments out of order at the
// receiver show them.
func (p *pass) lostUp() sent { return hiddenLoss(p.UpSent, p.Up) }

func (p *pass) lostDown() sent { return hiddenLoss(p.DownSent, p.Down) }

func hiddenLoss(s sent, r received) sent {
	if s.Lost == 0 && r.Segments > 0 && r.OutOfOrder > 0 {
		// One lost segment puts all segments in flight behind it out of order.
		// It counts as one, because the number of losses is unknown.
		if there := (sent{r.Segments, r.OutOfOrder}); loses(there, lossyShare) {
			return there
		}
	}
	return s
}

// goodput is the lower rate of both directions; 0: unknown.
func (p *pass) goodput() float64 {
	up, down := p.Up.goodputBps(), p.Down.goodputBps()
	if up == 0 || down == 0 {
		return max(up, down)
	}
	return min(up, down)
}

// goodput is the rate of the first exchange, which was not paced; 0: unknown.
func (l *leg) goodput() float64 {
	if len(l.Passes) == 0 {
		return 0
	}
	return l.Passes[0].goodput()
}

// directions sums up the exchanges of a leg.
func (l *leg) directions() (up, down *Direction) {
	var ups, downs []received
	var upSent, downSent []sent
	for _, p := range l.Passes {
		ups, downs = append(ups, p.Up), append(downs, p.Down)
		upSent, downSent = append(upSent, p.UpSent), append(downSent, p.DownSent)
	}
	return direction(ups, upSent), direction(downs, downSent)
}

// direction sums up one direction. The rate is that of the first exchange.
func direction(received []received, sending []sent) *Direction {
	if len(received) == 0 {
		return nil
	}
	d := &Direction{}
	add := func(to **int64, n int64, all bool) {
		if n >= 0 && (*to != nil || all) {
			if *to == nil {
				*to = new(int64)
			}
			**to += n
		}
	}
	for i, r := range received {
		d.Bytes += r.Bytes
		d.AlteredBytes += r.Altered
		add(&d.OutOfOrder, r.OutOfOrder, i == 0)
		add(&d.Segments, sending[i].Segments, i == 0)
		add(&d.LostSegments, sending[i].Lost, i == 0)
	}
	if bps := received[0].goodputBps(); bps > 0 {
		d.GoodputBps = &bps
	}
	return d
}

// throughBytes is the size of an exchange through relays. It is bounded by the
// bytes that the slowest leg carries in within, since bytes inside the relays
// must still arrive.
func throughBytes(requested int64, slowest float64, within time.Duration) int64 {
	if slowest > 0 {
		requested = min(requested, int64(slowest/8*within.Seconds()))
	}
	return max(requested, MinBytes)
}
