package history

import (
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/monitor"
)

const columns = `id, end_ms, start_ms, elapsed_us, flow, tunnel, client, target, hop, bytes_up, bytes_down,
	cause, cause_leg, cause_permille, reason, ended_by, error,
	client_side, client_cc, client_rtt_us, client_min_rtt_us, client_sent, client_retransmitted, client_retransmits,
	target_side, target_cc, target_rtt_us, target_min_rtt_us, target_sent, target_retransmitted, target_retransmits, series`

const insertRecord = "INSERT INTO records (" + columns + ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"

// maxError bounds the text of an error, in bytes.
const maxError = 200

// Numbers of legs in cause_leg.
var legNumbers = map[monitor.Leg]int64{monitor.ClientLeg: 1, monitor.TargetLeg: 2}

// some is nil where v stands for nothing.
func some(v int64, known bool) any {
	if !known {
		return nil
	}
	return v
}

func blob(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// arguments are a record's columns, and its facts.
func arguments(r *monitor.Record, id int64, word func(string) (int64, error)) ([]any, facts, error) {
	var firstErr error
	intern := func(s string) int64 {
		n, err := word(s)
		if err != nil && firstErr == nil {
			firstErr = err
		}
		return n
	}
	f := facts{
		id:        id,
		group:     group{tunnel: intern(r.Tunnel), cause: intern(string(r.Cause)), reason: intern(r.Reason), endedBy: intern(r.EndedBy)},
		endMs:     r.End.UnixMilli(),
		elapsedUs: max(r.Elapsed.Microseconds(), 0),
		up:        max(r.BytesUp, 0),
		down:      max(r.BytesDown, 0),
		sent:      -1,
	}
	for _, leg := range []*monitor.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		if leg.BytesSent >= 0 {
			f.sent = max(f.sent, 0) + leg.BytesSent
			f.retransmitted += max(leg.BytesRetransmitted, 0)
		}
	}
	if f.sent < 0 {
		f.retransmitted = -1
	}
	text := r.Error
	if len(text) > maxError {
		text = text[:maxError]
	}
	hop := intern(r.Hop)
	args := make([]any, 0, 32)
	args = append(args,
		id, f.endMs, r.Start.UnixMilli(), f.elapsedUs, int64(r.Flow), f.group.tunnel,
		blob(encodeAddress(r.Client)), blob(encodeAddress(r.Target)), some(hop, hop != 0), f.up, f.down,
		some(f.group.cause, f.group.cause != 0), some(legNumbers[r.CauseLeg], r.CauseLeg != ""), some(int64(r.CauseShare*1000+.5), r.CauseShare > 0),
		f.group.reason, f.group.endedBy)
	if text == "" {
		args = append(args, nil)
	} else {
		args = append(args, text)
	}
	for _, leg := range []*monitor.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		side, cc := intern(leg.Side), intern(leg.CongestionControl)
		args = append(args,
			some(side, side != 0), some(cc, cc != 0),
			some(leg.RTT.Microseconds(), leg.RTT > 0), some(leg.MinRTT.Microseconds(), leg.MinRTT > 0),
			some(leg.BytesSent, leg.BytesSent >= 0), some(leg.BytesRetransmitted, leg.BytesRetransmitted >= 0), some(leg.Retransmits, leg.Retransmits >= 0))
	}
	args = append(args, blob(encodeSeries(r.Goodput)))
	return args, f, firstErr
}

// scanner is a row.
type scanner interface{ Scan(...any) error }

// scanRecord reads the columns of a record.
func scanRecord(row scanner, words map[int64]string) (monitor.Record, error) {
	var (
		r                                       monitor.Record
		endMs, startMs, elapsedUs, flow, tunnel int64
		client, target, series                  []byte
		hop, cause, leg, permille               *int64
		reason, endedBy                         *int64
		text                                    *string
		legs                                    [2][7]*int64
	)
	to := []any{&r.ID, &endMs, &startMs, &elapsedUs, &flow, &tunnel, &client, &target, &hop, &r.BytesUp, &r.BytesDown,
		&cause, &leg, &permille, &reason, &endedBy, &text}
	for i := range legs {
		for j := range legs[i] {
			to = append(to, &legs[i][j])
		}
	}
	if err := row.Scan(append(to, &series)...); err != nil {
		return r, err
	}
	word := func(id *int64) string {
		if id == nil {
			return ""
		}
		return words[*id]
	}
	or := func(v *int64, unknown int64) int64 {
		if v == nil {
			return unknown
		}
		return *v
	}
	var err error
	if r.Client, err = decodeAddress(client); err != nil {
		return r, err
	}
	if r.Target, err = decodeAddress(target); err != nil {
		return r, err
	}
	if r.Goodput, err = decodeSeries(series); err != nil {
		return r, err
	}
	r.End, r.Start, r.Elapsed = time.UnixMilli(endMs).UTC(), time.UnixMilli(startMs).UTC(), time.Duration(elapsedUs)*time.Microsecond
	r.Flow, r.Tunnel, r.Hop = monitor.FlowID(flow), words[tunnel], word(hop)
	r.Cause, r.CauseShare = doctor.Cause(word(cause)), float64(or(permille, 0))/1000
	for name, number := range legNumbers {
		if or(leg, 0) == number {
			r.CauseLeg = name
		}
	}
	r.Reason, r.EndedBy = word(reason), word(endedBy)
	if text != nil {
		r.Error = *text
	}
	for i, to := range []*monitor.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		c := legs[i]
		*to = monitor.LegRecord{
			Side: word(c[0]), CongestionControl: word(c[1]),
			RTT: time.Duration(or(c[2], 0)) * time.Microsecond, MinRTT: time.Duration(or(c[3], 0)) * time.Microsecond,
			BytesSent: or(c[4], -1), BytesRetransmitted: or(c[5], -1), Retransmits: or(c[6], -1),
		}
	}
	return r, nil
}

// factColumns are what [scanFacts] reads.
const factColumns = `id, end_ms, elapsed_us, tunnel, ifnull(cause, 0), ifnull(reason, 0), ifnull(ended_by, 0), bytes_up, bytes_down,
	ifnull(client_sent, -1), ifnull(client_retransmitted, 0), ifnull(target_sent, -1), ifnull(target_retransmitted, 0)`

func scanFacts(row scanner, f *facts) error {
	var sent, again [2]int64
	if err := row.Scan(&f.id, &f.endMs, &f.elapsedUs, &f.group.tunnel, &f.group.cause, &f.group.reason, &f.group.endedBy,
		&f.up, &f.down, &sent[0], &again[0], &sent[1], &again[1]); err != nil {
		return err
	}
	f.sent, f.retransmitted = -1, -1
	for i := range sent {
		if sent[i] >= 0 {
			f.sent = max(f.sent, 0) + sent[i]
			f.retransmitted = max(f.retransmitted, 0) + again[i]
		}
	}
	return nil
}
