package check

import "time"

// An exchange of 1 MiB is some 724 segments, so a path that loses 1 % loses
// seven of them, and fewer than two once in 170 exchanges. But an exchange
// fills the path, and may lose segments to a full queue, which is no fault. So a
// leg that loses any to speak of is tried again, with twice as much at three
// quarters of the rate that came through: no queue fills then. It is called
// lossy if it still loses, not much less, and lossyShare of all that was sent. A
// path that loses 0.01 % is so called once in 40 000 checks.
const (
	lossyLeast = 2      // segments, in each exchange,
	lossyFew   = 1000   // but one in a second exchange of no more than so many
	lossyAgain = 0.001  // share of the second exchange,
	lossyStill = 1. / 4 // of the first one's
	lossyShare = 0.002  // of both
	calmRate   = 3.0 / 4
	calmBytes  = 2
)

// suspect says whether the first exchange lost so much that a second has to
// tell why.
func (l *leg) suspect() bool {
	first := &l.Passes[0]
	return loses(first.lostUp(), lossyShare) || loses(first.lostDown(), lossyShare)
}

// loses says which direction of the leg is lossy, empty for none, and which share
// of its segments that loses.
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
	return s.Segments > 0 && s.Lost >= lossyLeast && s.share() >= share
}

// stillLoses says whether a second exchange lost much as the first did.
func (s sent) stillLoses(first sent) bool {
	return s.Lost >= lossyLeast-1 && (s.Lost >= lossyLeast || s.Segments <= lossyFew) &&
		s.share() >= max(lossyAgain, lossyStill*first.share())
}

// share is that of the segments that were lost.
func (s sent) share() float64 { return float64(s.Lost) / float64(max(s.Segments, 1)) }

// lostUp is what was lost on the way up, as the sender saw it. Where a proxy
// stands in the leg the sender saw nothing of what lies behind that, and the
// receiver's segments out of order show it.
func (p *pass) lostUp() sent { return hiddenLoss(p.UpSent, p.Up) }

func (p *pass) lostDown() sent { return hiddenLoss(p.DownSent, p.Down) }

func hiddenLoss(s sent, r received) sent {
	if s.Lost == 0 && r.Segments > 0 && r.OutOfOrder > 0 {
		// One lost segment puts all those out of order that were on their way
		// behind it: it counts as one, as how many there were is not known.
		if there := (sent{r.Segments, r.OutOfOrder}); loses(there, lossyShare) {
			return there
		}
	}
	return s
}

// goodput is the lesser rate of both directions, 0 if it is not known.
func (p *pass) goodput() float64 {
	up, down := p.Up.goodputBps(), p.Down.goodputBps()
	if up == 0 || down == 0 {
		return max(up, down)
	}
	return min(up, down)
}

// goodput is that of the first exchange, which nothing slowed down; 0 if it is
// not known.
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

// throughBytes is how much is sent through relays: what the slowest leg carries
// in a moment, since what is on its way inside them must still arrive.
func throughBytes(asked int64, slowest float64, within time.Duration) int64 {
	if slowest > 0 {
		asked = min(asked, int64(slowest/8*within.Seconds()))
	}
	return max(asked, MinBytes)
}
