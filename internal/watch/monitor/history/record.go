package history

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
)

// maxError bounds the text of an error, in bytes.
const maxError = 200

// factColumns are the columns that [facts] need, the first ones of a record.
const factColumns = `id, end_ms, elapsed_us, tunnel_id, cause_id, reason_id, ended_by_id, bytes_up, bytes_down,
	client_bytes_sent, client_bytes_retransmitted, target_bytes_sent, target_bytes_retransmitted`

// recordColumns are all columns of the table records, in the order of
// [recordValues] and [readRecord].
var recordColumns = columnsOf(added{pairs: true, names: true})

// columnsOf are recordColumns; those that a file does not have are NULL.
func columnsOf(has added) string {
	pairs, names := ", NULL, NULL", ", NULL, NULL, NULL"
	if has.pairs {
		pairs = ", resumes, outage_us"
	}
	if has.names {
		names = ", name, peer_id, relay_id"
	}
	return commonColumns + pairs + names + ", goodput"
}

// commonColumns are those of every file, but for the last.
const commonColumns = factColumns + `,
	start_ms, flow, hop_id, client, client_port, target, target_port, error, cause_leg_id, cause_permille,
	client_side_id, client_congestion_control_id, client_rtt_us, client_min_rtt_us, client_retransmits,
	target_side_id, target_congestion_control_id, target_rtt_us, target_min_rtt_us, target_retransmits`

// Numbers of columns.
const (
	factLen   = 13
	recordLen = 39
)

// insertRecord adds one record.
var insertRecord = "INSERT INTO records (" + recordColumns + ") VALUES (?" + strings.Repeat(",?", recordLen-1) + ")"

// recordValues appends a record's columns to values and returns its facts. intern
// returns the ID of a word.
func recordValues(values []any, r *monitor.Record, id int64, intern func(string) (int64, error)) ([]any, facts, error) {
	var firstErr error
	word := func(s string) int64 {
		n, err := intern(s)
		if err != nil && firstErr == nil {
			firstErr = err
		}
		return n
	}
	f := facts{
		id:        id,
		group:     group{word(r.Tunnel), word(string(r.Cause)), word(string(r.Reason)), word(r.EndedBy)},
		endMs:     r.End.UnixMilli(),
		elapsedUs: max(r.Elapsed.Duration().Microseconds(), 0),
		up:        max(r.BytesUp, 0),
		down:      max(r.BytesDown, 0),
	}
	legs := [2]*flow.LegRecord{&r.ClientLeg, &r.TargetLeg}
	for i, leg := range legs {
		f.leg(i, leg.BytesSent, leg.BytesRetransmitted)
	}
	values = append(values, id, f.endMs, f.elapsedUs, positive(f.group.tunnel), positive(f.group.cause),
		positive(f.group.reason), positive(f.group.endedBy), f.up, f.down)
	for _, leg := range legs {
		values = append(values, known(leg.BytesSent), known(leg.BytesRetransmitted))
	}
	values = append(values, r.Start.UnixMilli(), positive(int64(r.Flow)), positive(word(r.Hop)))
	for _, a := range []flow.Address{r.Client, r.Target} {
		if a.IsValid() {
			values = append(values, a.Addr().WithZone("").String(), int64(a.Port()))
		} else {
			values = append(values, nil, nil)
		}
	}
	values = append(values, text(r.Error), positive(word(string(r.CauseLeg))), positive(int64(r.CauseShare*1000+.5)))
	for _, leg := range legs {
		values = append(values, positive(word(leg.Side)), positive(word(leg.CongestionControl)),
			positive(leg.RTT.Duration().Microseconds()), positive(leg.MinRTT.Duration().Microseconds()), known(leg.Retransmits))
	}
	if r.Resumes > 0 || r.Outage > 0 {
		values = append(values, max(r.Resumes, 0), max(r.Outage.Duration().Microseconds(), 0))
	} else {
		values = append(values, nil, nil)
	}
	if r.Name.IsZero() {
		values = append(values, nil)
	} else {
		values = append(values, r.Name[:])
	}
	values = append(values, positive(word(r.Peer)), positive(word(r.Relay)))
	if series := EncodeSeries(r.Goodput); series != nil {
		values = append(values, series)
	} else {
		values = append(values, nil)
	}
	return values, f, firstErr
}

// known is NULL for a negative number, which is unknown.
func known(v int64) any {
	if v < 0 {
		return nil
	}
	return v
}

// positive is NULL for a number below 1, which is unknown.
func positive(v int64) any {
	if v < 1 {
		return nil
	}
	return v
}

// text is NULL for no text. It bounds the length and replaces bytes that are not
// UTF-8, and NUL, at which sqlite3 would end the text.
func text(s string) any {
	if s == "" {
		return nil
	}
	s = s[:min(len(s), maxError)]
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

// leg adds the bytes that one leg sent, negative if unknown.
func (f *facts) leg(i int, sent, retransmitted int64) {
	if i == 0 {
		f.sent, f.retransmitted = -1, -1
	}
	if sent >= 0 {
		f.sent = max(f.sent, 0) + sent
		f.retransmitted = max(f.retransmitted, 0) + max(retransmitted, 0)
	}
}

// scanner is a row of an answer.
type scanner interface{ Scan(...any) error }

// rowReader reads the columns of a row one after the other. It sets failed at a
// value that no record is written with.
type rowReader struct {
	values []any
	next   int
	into   []any
	failed bool
}

func newRowReader(columns int) *rowReader {
	r := &rowReader{values: make([]any, columns), into: make([]any, columns)}
	for i := range r.values {
		r.into[i] = &r.values[i]
	}
	return r
}

// scan takes the next row.
func (r *rowReader) scan(row scanner) error {
	r.next, r.failed = 0, false
	return row.Scan(r.into...)
}

func (r *rowReader) value() any {
	r.next++
	return r.values[r.next-1]
}

// number reads a number, NULL as another one.
func (r *rowReader) number(null int64) int64 {
	switch v := r.value().(type) {
	case int64:
		return v
	case nil:
		return null
	}
	r.failed = true
	return 0
}

// count reads a number that is not negative, NULL as another one.
func (r *rowReader) count(null int64) int64 {
	n := r.number(null)
	if n < 0 && n != null {
		r.failed = true
		return 0
	}
	return n
}

// text reads a text, NULL as an empty one.
func (r *rowReader) text() string {
	switch v := r.value().(type) {
	case string:
		return v
	case nil:
	default:
		r.failed = true
	}
	return ""
}

// address reads an address and its port.
func (r *rowReader) address() flow.Address {
	host, port := r.text(), r.count(0)
	if host == "" {
		return flow.Address{}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || port > 65535 {
		r.failed = true
		return flow.Address{}
	}
	return flow.Address{AddrPort: netip.AddrPortFrom(addr, uint16(port))}
}

// micros reads a duration, NULL as 0.
func (r *rowReader) micros() time.Duration {
	us := r.count(0)
	if us > maxMicros {
		r.failed = true
		return 0
	}
	return time.Duration(us) * time.Microsecond
}

// maxMicros is the longest [time.Duration].
const maxMicros = int64(1<<63-1) / int64(time.Microsecond)

// name reads the name of a flow, NULL as none.
func (r *rowReader) name() flow.Name {
	switch v := r.value().(type) {
	case []byte:
		if len(v) == len(flow.Name{}) {
			return flow.Name(v)
		}
	case nil:
		return flow.Name{}
	}
	r.failed = true
	return flow.Name{}
}

// series reads the course of a goodput.
func (r *rowReader) series() monitor.Series {
	b, ok := r.value().([]byte)
	s, err := DecodeSeries(b)
	if !ok && r.values[r.next-1] != nil || err != nil {
		r.failed = true
	}
	return s
}

// err reports a value that no record is written with.
func (r *rowReader) err() error {
	if r.failed {
		return errBlob
	}
	return nil
}

// readFacts reads the first columns of a record, and what each leg sent.
func readFacts(r *rowReader) (f facts, legs [2][2]int64) {
	f.id, f.endMs, f.elapsedUs = r.count(0), r.number(0), r.count(0)
	f.group = group{r.count(0), r.count(0), r.count(0), r.count(0)}
	f.up, f.down = r.count(0), r.count(0)
	for i := range legs {
		legs[i] = [2]int64{r.count(-1), r.count(-1)}
		f.leg(i, legs[i][0], legs[i][1])
	}
	if f.elapsedUs > maxMicros || f.sent < -1 || f.retransmitted < -1 { // a sum that is too large
		r.failed = true
	}
	return f, legs
}

// readRecord is the inverse of recordValues.
func readRecord(r *rowReader, words map[int64]string) (record monitor.Record, f facts, err error) {
	f, sent := readFacts(r)
	record = monitor.Record{
		ID: f.id,
		Record: flow.Record{
			Tunnel: words[f.group.tunnel], Reason: flow.EndReason(words[f.group.reason]), BytesUp: f.up, BytesDown: f.down,
		},
		Cause: doctor.Cause(words[f.group.cause]), EndedBy: words[f.group.endedBy],
	}
	record.End = time.UnixMilli(f.endMs).UTC()
	record.Elapsed = units.Seconds(time.Duration(f.elapsedUs) * time.Microsecond)
	record.Start = time.UnixMilli(r.number(0)).UTC()
	record.Flow, record.Hop = flow.ID(r.count(0)), words[r.count(0)]
	record.Client, record.Target = r.address(), r.address()
	record.Error = r.text()
	record.CauseLeg, record.CauseShare = flow.Leg(words[r.count(0)]), float64(r.count(0))/1000
	for i, to := range []*flow.LegRecord{&record.ClientLeg, &record.TargetLeg} {
		*to = flow.LegRecord{
			Side: words[r.count(0)], CongestionControl: words[r.count(0)], RTT: units.Seconds(r.micros()), MinRTT: units.Seconds(r.micros()),
			BytesSent: sent[i][0], BytesRetransmitted: sent[i][1], Retransmits: r.count(-1),
		}
	}
	record.Resumes, record.Outage = r.count(0), units.Seconds(r.micros())
	record.Name, record.Peer, record.Relay = r.name(), words[r.count(0)], words[r.count(0)]
	record.Site = flow.SiteOf(record.Peer)
	record.Goodput = r.series()
	return record, f, r.err()
}

// insertRecords adds the records whose columns follow each other in values. It
// talks to the driver, since database/sql takes a third of the time for itself.
func insertRecords(conn *sql.Conn, values []any) error {
	return conn.Raw(func(driverConn any) error {
		stmt, err := driverConn.(driver.ConnPrepareContext).PrepareContext(background, insertRecord)
		if err != nil {
			return err
		}
		defer stmt.Close()
		add := stmt.(driver.StmtExecContext)
		columns := make([]driver.NamedValue, recordLen)
		for i := range columns {
			columns[i].Ordinal = i + 1
		}
		for record := range slices.Chunk(values, recordLen) {
			for i, v := range record {
				columns[i].Value = v
			}
			if _, err := add.ExecContext(background, columns); err != nil {
				return err
			}
		}
		return nil
	})
}

// factsBetween visits the facts of the records above one ID, up to another.
func factsBetween(conn *sql.Conn, above, last int64, visit func(*facts)) error {
	rows, err := conn.QueryContext(background,
		"SELECT "+factColumns+" FROM records WHERE id > ? AND id <= ? ORDER BY id", above, last)
	if err != nil {
		return err
	}
	return errors.Join(eachFact(rows, visit), rows.Close())
}

// eachFact visits the facts of an answer.
func eachFact(rows *sql.Rows, visit func(*facts)) error {
	r := newRowReader(factLen)
	for rows.Next() {
		if err := r.scan(rows); err != nil {
			return err
		}
		f, _ := readFacts(r)
		if err := r.err(); err != nil {
			return err
		}
		visit(&f)
	}
	return rows.Err()
}
