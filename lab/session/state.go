package session

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"longhaul/internal/words/display"
	"longhaul/internal/words/units"
	"longhaul/lab"
	"longhaul/lab/link"
)

// State has the settings and counters of a running lab's WAN.
type State struct {
	Directions []Direction `json:"directions"`
}

// Direction is a direction of the WAN.
type Direction struct {
	Direction       string  `json:"direction"`
	DelayMs         float64 `json:"delay_ms"`
	JitterMs        float64 `json:"jitter_ms"`
	RateBps         int64   `json:"rate_bps"` // the mean of a trace
	Trace           string  `json:"trace"`    // its file's name; empty without one
	ATM             bool    `json:"atm"`
	PacketRate      int64   `json:"packet_rate"` // packets per second, 0 for no bound
	LossProbability float64 `json:"loss_probability"`
	MTU             int     `json:"mtu"`
	QueueBytes      int     `json:"queue_bytes"`
	AQM             string  `json:"aqm"`           // none, codel, fq_codel or pie
	AQMTargetMs     float64 `json:"aqm_target_ms"` // 0 without one
	ECN             bool    `json:"ecn"`           // the AQM marks
	MarkAboveMs     float64 `json:"mark_above_ms"` // 0 is no marks
	Down            bool    `json:"down"`

	PoliceBps       int64   `json:"police_bps"` // 0 is no policer
	PolicePerFlow   bool    `json:"police_per_flow"`
	RateLossFromBps int64   `json:"rate_loss_from_bps"`
	RateLossToBps   int64   `json:"rate_loss_to_bps"`
	RateLossShare   float64 `json:"rate_loss_share"` // at the second rate; 0 is none
	ACKThinning     int     `json:"ack_thinning"`    // one of so many passes; 0 is all
	AggregateMs     float64 `json:"aggregate_ms"`    // 0 is no bursts
	AggregateBytes  int     `json:"aggregate_bytes"`

	PacketsIn      uint64  `json:"packets_in"`
	Delivered      uint64  `json:"packets_delivered"`
	BytesDelivered uint64  `json:"bytes_delivered"`
	Lost           uint64  `json:"packets_lost"`
	Thinned        uint64  `json:"packets_thinned"`
	Policed        uint64  `json:"packets_policed"`
	QueueDrops     uint64  `json:"queue_drops"`
	AQMDrops       uint64  `json:"aqm_drops"`
	Marked         uint64  `json:"packets_marked"`
	TooBig         uint64  `json:"packets_too_big"`
	Outage         uint64  `json:"packets_lost_in_outages"`
	Reordered      uint64  `json:"packets_reordered"`
	LostByMachine  uint64  `json:"packets_lost_by_machine"` // outside the emulation; 0 unless the machine is overloaded
	QueueP50Ms     float64 `json:"queue_delay_p50_ms"`
	QueueP95Ms     float64 `json:"queue_delay_p95_ms"`
	QueueP99Ms     float64 `json:"queue_delay_p99_ms"`
	QueueMaxMs     float64 `json:"queue_delay_max_ms"`
}

func (s *server) state() State {
	wan := s.lab.Link(lab.WAN)
	var state State
	for _, dir := range []link.Direction{link.AToB, link.BToA} {
		settings, counters := wan.Settings(dir), wan.Counters(dir)
		state.Directions = append(state.Directions, Direction{
			Direction:       dir.String(),
			DelayMs:         display.Milliseconds(settings.Delay),
			JitterMs:        display.Milliseconds(settings.Jitter),
			RateBps:         settings.MeanBps(),
			Trace:           traceName(settings),
			ATM:             settings.ATM,
			PacketRate:      settings.PacketsPerSecond,
			LossProbability: settings.Loss.Share(),
			MTU:             settings.MTU,
			QueueBytes:      settings.QueueLimitBytes(settings.Delay),
			AQM:             settings.AQM.Algorithm.String(),
			AQMTargetMs:     display.Milliseconds(settings.AQM.TargetOrDefault()),
			ECN:             settings.AQM.ECN,
			MarkAboveMs:     display.Milliseconds(settings.MarkAbove),
			Down:            settings.Down,
			PoliceBps:       settings.Policer.RateBps,
			PolicePerFlow:   settings.Policer.PerFlow,
			RateLossFromBps: settings.RateLoss.FromBps,
			RateLossToBps:   settings.RateLoss.ToBps,
			RateLossShare:   settings.RateLoss.Share,
			ACKThinning:     settings.ACKThinning,
			AggregateMs:     display.Milliseconds(settings.Aggregate.Every),
			AggregateBytes:  settings.Aggregate.Bytes,

			PacketsIn:      counters.PacketsIn,
			Delivered:      counters.PacketsDelivered,
			BytesDelivered: counters.BytesDelivered,
			Lost:           counters.Lost,
			Thinned:        counters.Thinned,
			Policed:        counters.Policed,
			QueueDrops:     counters.QueueDrops,
			AQMDrops:       counters.AQMDrops,
			Marked:         counters.Marked,
			TooBig:         counters.TooBig,
			Outage:         counters.Outage,
			Reordered:      counters.Reordered,
			LostByMachine:  counters.DeviceDrops + counters.WriteErrors,
			QueueP50Ms:     display.Milliseconds(counters.QueueDelayP50),
			QueueP95Ms:     display.Milliseconds(counters.QueueDelayP95),
			QueueP99Ms:     display.Milliseconds(counters.QueueDelayP99),
			QueueMaxMs:     display.Milliseconds(counters.QueueDelayMax),
		})
	}
	return state
}

func traceName(s link.Settings) string {
	if s.Trace == nil {
		return ""
	}
	return s.Trace.Name()
}

// WriteText prints the settings and counters, a column for each direction.
func (s State) WriteText(w io.Writer) error {
	if len(s.Directions) != 2 {
		return fmt.Errorf("the lab described %d directions, not 2", len(s.Directions))
	}
	ab, ba := s.Directions[0], s.Directions[1]
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(what, a, b string) { fmt.Fprintf(table, "%s\t%s\t%s\t\n", what, a, b) }
	both := func(what string, figure func(Direction) string) { row(what, figure(ab), figure(ba)) }
	row("", "A to B", "B to A")
	both("delay", func(d Direction) string { return fmt.Sprintf("%g ms", d.DelayMs) })
	if ab.JitterMs+ba.JitterMs > 0 {
		both("jitter", func(d Direction) string { return fmt.Sprintf("±%g ms", d.JitterMs) })
	}
	both("rate", func(d Direction) string {
		if d.RateBps == 0 {
			return "unbounded"
		}
		if d.ATM {
			return display.Rate(float64(d.RateBps)) + " of cells"
		}
		return display.Rate(float64(d.RateBps))
	})
	if ab.Trace+ba.Trace != "" {
		both("trace", func(d Direction) string { return cmp.Or(d.Trace, "none") })
	}
	if ab.PacketRate+ba.PacketRate > 0 {
		both("packet rate", func(d Direction) string { return fmt.Sprintf("%d/s", d.PacketRate) })
	}
	both("loss", func(d Direction) string { return fmt.Sprintf("%g%%", 100*d.LossProbability) })
	if ab.RateLossShare+ba.RateLossShare > 0 {
		both("loss by rate", func(d Direction) string {
			if d.RateLossShare == 0 {
				return "0%"
			}
			return fmt.Sprintf("%g%% at %s", 100*d.RateLossShare, display.Rate(float64(d.RateLossToBps)))
		})
	}
	if ab.PoliceBps+ba.PoliceBps > 0 {
		both("policer", func(d Direction) string {
			switch {
			case d.PoliceBps == 0:
				return "none"
			case d.PolicePerFlow:
				return display.Rate(float64(d.PoliceBps)) + " a flow"
			}
			return display.Rate(float64(d.PoliceBps))
		})
	}
	if ab.ACKThinning+ba.ACKThinning > 0 {
		both("ACKs that pass", func(d Direction) string { return fmt.Sprintf("1 of %d", max(d.ACKThinning, 1)) })
	}
	if ab.AggregateMs+ba.AggregateMs > 0 {
		both("bursts", func(d Direction) string { return fmt.Sprintf("%g ms", d.AggregateMs) })
	}
	both("queue", func(d Direction) string { return units.Size(d.QueueBytes).String() })
	if ab.AQMTargetMs+ba.AQMTargetMs > 0 {
		both("AQM", func(d Direction) string {
			if d.ECN {
				return fmt.Sprintf("%s %g ms, ECN", d.AQM, d.AQMTargetMs)
			}
			return fmt.Sprintf("%s %g ms", d.AQM, d.AQMTargetMs)
		})
	}
	if ab.MarkAboveMs+ba.MarkAboveMs > 0 {
		both("marks above", func(d Direction) string { return fmt.Sprintf("%g ms", d.MarkAboveMs) })
	}
	both("MTU", func(d Direction) string { return fmt.Sprint(d.MTU) })
	if ab.Down || ba.Down {
		both("outage", func(d Direction) string { return fmt.Sprint(d.Down) })
	}
	if ab.PacketsIn+ba.PacketsIn > 0 {
		count := func(what string, figure func(Direction) uint64) {
			both(what, func(d Direction) string { return fmt.Sprint(figure(d)) })
		}
		count("packets in", func(d Direction) uint64 { return d.PacketsIn })
		count("delivered", func(d Direction) uint64 { return d.Delivered })
		count("lost", func(d Direction) uint64 { return d.Lost })
		if ab.Thinned+ba.Thinned > 0 {
			count("thinned", func(d Direction) uint64 { return d.Thinned })
		}
		if ab.Policed+ba.Policed > 0 {
			count("policed", func(d Direction) uint64 { return d.Policed })
		}
		count("queue drops", func(d Direction) uint64 { return d.QueueDrops })
		if ab.AQMDrops+ba.AQMDrops > 0 {
			count("AQM drops", func(d Direction) uint64 { return d.AQMDrops })
		}
		if ab.Marked+ba.Marked > 0 {
			count("marked", func(d Direction) uint64 { return d.Marked })
		}
		count("too big", func(d Direction) uint64 { return d.TooBig })
		count("lost in outages", func(d Direction) uint64 { return d.Outage })
		count("lost by the machine", func(d Direction) uint64 { return d.LostByMachine })
		both("queue delay p50", func(d Direction) string { return fmt.Sprintf("%.2f ms", d.QueueP50Ms) })
		both("queue delay p95", func(d Direction) string { return fmt.Sprintf("%.2f ms", d.QueueP95Ms) })
	}
	return table.Flush()
}
