package history

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"longhaul/internal/units"

	"longhaul/internal/flow"

	"longhaul/internal/doctor"
	"longhaul/internal/monitor"
)

// Records are kept in packs: a row of SQLite's costs more than the record in it,
// and thousands of flows may end in a second. A pack has records of successive
// IDs, those of one transaction, and at most packLen, after one of which it always
// ends. When a segment is full, packs that became many are made whole ones.
//
//	format, records × (length in two bytes, record), CRC-32C of all that
//
// A record is numbers without their leading zeros, its facts first.
const (
	packLen    = 128
	packFormat = 1
	// loosePacks is how many packs a segment may be left in.
	loosePacks = segmentLen/packLen + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealed are rows with their checksum behind them.
func sealed(rows []byte) []byte {
	return binary.LittleEndian.AppendUint32(rows, crc32.Checksum(rows, castagnoli))
}

// maxError bounds the text of an error, in bytes.
const maxError = 200

// Numbers of legs that a cause is of.
var legNumbers = map[flow.Leg]int64{flow.ClientLeg: 1, flow.TargetLeg: 2}

// packRecord appends a record to a pack and gives its facts. Words are interned.
func packRecord(rows []byte, r *monitor.Record, id int64, word func(string) (int64, error)) ([]byte, facts, error) {
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
		group:     group{tunnel: intern(r.Tunnel), cause: intern(string(r.Cause)), reason: intern(string(r.Reason)), endedBy: intern(r.EndedBy)},
		endMs:     r.End.UnixMilli(),
		elapsedUs: max(r.Elapsed.Duration().Microseconds(), 0),
		up:        max(r.BytesUp, 0),
		down:      max(r.BytesDown, 0),
	}
	legs := [2]*flow.LegRecord{&r.ClientLeg, &r.TargetLeg}
	for i, leg := range legs {
		f.leg(i, leg.BytesSent, leg.BytesRetransmitted)
	}

	b, at := beginBody(rows)
	number := func(v int64) { b = binary.AppendUvarint(b, uint64(v)) }
	known := func(v int64) { number(max(v, -1) + 1) } // negative: not known
	text := func(v []byte) { b = append(binary.AppendUvarint(b, uint64(len(v))), v...) }
	b = binary.AppendVarint(b, f.endMs)
	number(f.elapsedUs)
	number(f.group.tunnel)
	number(f.group.cause)
	number(f.group.reason)
	number(f.group.endedBy)
	number(f.up)
	number(f.down)
	for _, leg := range legs {
		known(leg.BytesSent)
		known(leg.BytesRetransmitted)
	}
	b = binary.AppendVarint(b, r.Start.UnixMilli()-f.endMs+f.elapsedUs/1000)
	number(int64(r.Flow))
	number(intern(r.Hop))
	number(legNumbers[r.CauseLeg])
	number(int64(r.CauseShare*1000 + .5))
	b = appendAddress(b, r.Client)
	b = appendAddress(b, r.Target)
	text([]byte(r.Error[:min(len(r.Error), maxError)]))
	for _, leg := range legs {
		number(intern(leg.Side))
		number(intern(leg.CongestionControl))
		number(max(leg.RTT.Duration().Microseconds(), 0))
		number(max(leg.MinRTT.Duration().Microseconds(), 0))
		known(leg.Retransmits)
	}
	text(encodeSeries(r.Goodput))
	return endBody(b, at), f, firstErr
}

// beginBody makes room for the length of a record that is appended next. Its own
// bounds, those of words, errors and series, keep it below 64 KiB.
func beginBody(rows []byte) (_ []byte, at int) {
	if len(rows) == 0 {
		rows = append(rows, packFormat)
	}
	return append(rows, 0, 0), len(rows) + 2
}

// endBody sets the length of the record that begins at a byte.
func endBody(rows []byte, at int) []byte {
	binary.LittleEndian.PutUint16(rows[at-2:], uint16(len(rows)-at))
	return rows
}

// leg takes in what one leg has sent, negative if it is not known.
func (f *facts) leg(i int, sent, retransmitted int64) {
	if i == 0 {
		f.sent, f.retransmitted = -1, -1
	}
	if sent >= 0 {
		f.sent = max(f.sent, 0) + sent
		f.retransmitted = max(f.retransmitted, 0) + max(retransmitted, 0)
	}
}

// pack is a row of the table: records up to the ID last.
type pack struct {
	last, records int64
	rows          []byte
}

// packColumns are what [scanPack] reads.
const packColumns = "last, records, rows"

func scanPack(row scanner) (p pack, err error) {
	err = row.Scan(&p.last, &p.records, &p.rows)
	return p, err
}

// scanner is a row.
type scanner interface{ Scan(...any) error }

// each calls visit with every record of a pack that is above an ID.
func (p *pack) each(above int64, visit func(id int64, body []byte) error) error {
	end := len(p.rows) - crc32.Size
	if end < 0 || binary.LittleEndian.Uint32(p.rows[end:]) != crc32.Checksum(p.rows[:end], castagnoli) {
		return errBlob
	}
	r := &blobReader{b: p.rows[:end]}
	if r.byte() != packFormat || p.records < 1 || p.records > packLen || p.records > p.last {
		return errBlob
	}
	for id := p.last - p.records + 1; id <= p.last; id++ {
		body := r.take(int(r.uint16()))
		if r.failed {
			return errBlob
		}
		if id > above {
			if err := visit(id, body); err != nil {
				return err
			}
		}
	}
	return r.err()
}

// facts visits those of the records above an ID.
func (p *pack) facts(above int64, visit func(*facts)) error {
	return p.each(above, func(id int64, body []byte) error {
		f := facts{id: id}
		r := &blobReader{b: body}
		readFacts(r, &f)
		if r.failed {
			return errBlob
		}
		visit(&f)
		return nil
	})
}

// record is the one with an ID, if the pack has it.
func (p *pack) record(id int64, words map[int64]string) (found monitor.Record, err error) {
	err = p.each(id-1, func(at int64, body []byte) error {
		if at > id {
			return nil
		}
		found, err = unpackRecord(id, body, words)
		return err
	})
	if err == nil && found.ID == 0 {
		err = errBlob
	}
	return found, err
}

// readFacts reads the beginning of a record.
func readFacts(r *blobReader, f *facts) (legs [2][2]int64) {
	f.endMs, f.elapsedUs = r.varint(), r.count()
	f.group = group{r.count(), r.count(), r.count(), r.count()}
	f.up, f.down = r.count(), r.count()
	for i := range legs {
		legs[i] = [2]int64{r.count() - 1, r.count() - 1}
		f.leg(i, legs[i][0], legs[i][1])
	}
	if f.sent < -1 || f.retransmitted < -1 { // a sum that is too large
		r.fail()
	}
	return legs
}

// unpackRecord is the inverse of packRecord.
func unpackRecord(id int64, body []byte, words map[int64]string) (monitor.Record, error) {
	r := &blobReader{b: body}
	f := facts{id: id}
	sent := readFacts(r, &f)
	record := monitor.Record{
		ID:     id,
		Record: flow.Record{Tunnel: words[f.group.tunnel], Reason: flow.EndReason(words[f.group.reason]), BytesUp: f.up, BytesDown: f.down},
		Cause:  doctor.Cause(words[f.group.cause]), EndedBy: words[f.group.endedBy],
	}
	record.End, record.Elapsed = time.UnixMilli(f.endMs).UTC(), units.Seconds(time.Duration(f.elapsedUs)*time.Microsecond)
	record.Start = time.UnixMilli(f.endMs - f.elapsedUs/1000 + r.varint()).UTC()
	record.Flow, record.Hop = flow.ID(r.count()), words[r.count()]
	leg := r.count()
	for name, number := range legNumbers {
		if leg == number {
			record.CauseLeg = name
		}
	}
	record.CauseShare = float64(r.count()) / 1000
	client, errClient := decodeAddress(r.bytes())
	target, errTarget := decodeAddress(r.bytes())
	record.Client, record.Target = client, target
	record.Error = string(r.bytes())
	for i, to := range []*flow.LegRecord{&record.ClientLeg, &record.TargetLeg} {
		*to = flow.LegRecord{
			Side: words[r.count()], CongestionControl: words[r.count()],
			RTT: units.Seconds(time.Duration(r.count()) * time.Microsecond), MinRTT: units.Seconds(time.Duration(r.count()) * time.Microsecond),
			BytesSent: sent[i][0], BytesRetransmitted: sent[i][1], Retransmits: r.count() - 1,
		}
	}
	series, errSeries := decodeSeries(r.bytes())
	record.Goodput = series
	return record, errors.Join(errClient, errTarget, errSeries, r.err())
}
