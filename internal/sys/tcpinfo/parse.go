package tcpinfo

import (
	"encoding/binary"
	"math"
	"time"
)

// Room for every tcp_info up to Linux 6.18 (280 bytes) and some growth.
const bufLen = 512

// nativeOrder is this machine's byte order as a comparable value.
var nativeOrder = func() binary.ByteOrder {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return binary.LittleEndian
	}
	return binary.BigEndian
}()

// noMinRTT is the kernel's minimum before the first sample.
const noMinRTT = math.MaxUint32

// In a shorter tcp_info, the bit for application-limited samples is padding.
const lenWithDeliveryRate = 168

// parse parses a tcp_info in the layout of a machine with the given byte order.
// The kernel always added 32-bit fields after the fixed part in pairs, so the
// end never has padding.
func parse(raw []byte, order binary.ByteOrder) Info {
	r := reader{raw: raw, order: order}
	var i Info

	i.State = State(r.u8(FieldState, 0))
	i.CAState = CAState(r.u8(FieldCAState, 1))
	i.Retransmits = r.u8(FieldRetransmits, 2)
	i.Probes = r.u8(FieldProbes, 3)
	i.Backoff = r.u8(FieldBackoff, 4)
	i.Options = Options(r.u8(FieldOptions, 5))
	i.SndWScale, i.RcvWScale, i.DeliveryRateAppLimited = r.bitFields(6)
	i.RTO = r.micros(FieldRTO, 8)
	i.ATO = r.micros(FieldATO, 12)
	i.SndMSS = r.u32(FieldSndMSS, 16)
	i.RcvMSS = r.u32(FieldRcvMSS, 20)
	i.Unacked = r.u32(FieldUnacked, 24)
	i.Sacked = r.u32(FieldSacked, 28)
	i.Lost = r.u32(FieldLost, 32)
	i.Retrans = r.u32(FieldRetrans, 36)
	i.LastDataSent = r.millis(FieldLastDataSent, 44)
	i.LastDataRecv = r.millis(FieldLastDataRecv, 52)
	i.LastAckRecv = r.millis(FieldLastAckRecv, 56)
	i.PMTU = r.u32(FieldPMTU, 60)
	i.RcvSSThresh = r.u32(FieldRcvSSThresh, 64)
	i.RTT = r.micros(FieldRTT, 68)
	i.RTTVar = r.micros(FieldRTTVar, 72)
	i.SndSSThresh = r.u32(FieldSndSSThresh, 76)
	i.SndCwnd = r.u32(FieldSndCwnd, 80)
	i.AdvMSS = r.u32(FieldAdvMSS, 84)
	i.Reordering = r.u32(FieldReordering, 88)
	i.RcvRTT = r.micros(FieldRcvRTT, 92)
	i.RcvSpace = r.u32(FieldRcvSpace, 96)
	i.TotalRetrans = r.u32(FieldTotalRetrans, 100)
	i.PacingRateBps = r.rate(FieldPacingRateBps, 104)
	i.MaxPacingRateBps = r.rate(FieldMaxPacingRateBps, 112)
	i.BytesAcked = r.u64(FieldBytesAcked, 120)
	i.BytesReceived = r.u64(FieldBytesReceived, 128)
	i.SegsOut = r.u32(FieldSegsOut, 136)
	i.SegsIn = r.u32(FieldSegsIn, 140)
	i.NotsentBytes = r.u32(FieldNotsentBytes, 144)
	i.MinRTT = r.micros(FieldMinRTT, 148)
	i.DataSegsIn = r.u32(FieldDataSegsIn, 152)
	i.DataSegsOut = r.u32(FieldDataSegsOut, 156)
	i.DeliveryRateBps = r.rate(FieldDeliveryRateBps, 160)
	i.BusyTime = r.micros64(FieldBusyTime, 168)
	i.RwndLimited = r.micros64(FieldRwndLimited, 176)
	i.SndbufLimited = r.micros64(FieldSndbufLimited, 184)
	i.Delivered = r.u32(FieldDelivered, 192)
	i.DeliveredCE = r.u32(FieldDeliveredCE, 196)
	i.BytesSent = r.u64(FieldBytesSent, 200)
	i.BytesRetrans = r.u64(FieldBytesRetrans, 208)
	i.DSACKDups = r.u32(FieldDSACKDups, 216)
	i.ReordSeen = r.u32(FieldReordSeen, 220)
	i.RcvOOOPack = r.u32(FieldRcvOOOPack, 224)
	i.SndWnd = r.u32(FieldSndWnd, 228)
	i.RcvWnd = r.u32(FieldRcvWnd, 232)
	i.Rehash = r.u32(FieldRehash, 236)
	i.TotalRTO = r.u16(FieldTotalRTO, 240)
	i.TotalRTORecoveries = r.u16(FieldTotalRTORecoveries, 242)
	i.TotalRTOTime = r.millis(FieldTotalRTOTime, 244)

	if i.RTT == 0 {
		r.forget(FieldRTT, FieldRTTVar)
	}
	if i.RcvRTT == 0 {
		r.forget(FieldRcvRTT)
	}
	if i.MinRTT == noMinRTT*time.Microsecond {
		r.forget(FieldMinRTT)
	}
	if i.State == Listen {
		// The kernel uses two fields for the accept queue and leaves nearly all
		// others unset.
		r.known &= 1 << FieldState
	}
	i.known = r.known
	return i
}

// reader extracts fields from raw and records which are present.
type reader struct {
	raw   []byte
	order binary.ByteOrder
	known uint64
}

// absent replaces fields beyond the end of raw.
var absent [8]byte

// at returns the field's bytes, or size zero bytes if raw ends before them.
func (r *reader) at(f Field, offset, size int) []byte {
	if offset+size > len(r.raw) {
		return absent[:size]
	}
	r.known |= 1 << f
	return r.raw[offset : offset+size]
}

func (r *reader) forget(fields ...Field) {
	for _, f := range fields {
		r.known &^= 1 << f
	}
}

func (r *reader) u8(f Field, offset int) uint8   { return r.at(f, offset, 1)[0] }
func (r *reader) u16(f Field, offset int) uint16 { return r.order.Uint16(r.at(f, offset, 2)) }
func (r *reader) u32(f Field, offset int) uint32 { return r.order.Uint32(r.at(f, offset, 4)) }
func (r *reader) u64(f Field, offset int) uint64 { return r.order.Uint64(r.at(f, offset, 8)) }

func (r *reader) micros(f Field, offset int) time.Duration {
	return time.Duration(r.u32(f, offset)) * time.Microsecond
}

func (r *reader) millis(f Field, offset int) time.Duration {
	return time.Duration(r.u32(f, offset)) * time.Millisecond
}

func (r *reader) micros64(f Field, offset int) time.Duration {
	return time.Duration(r.u64(f, offset)) * time.Microsecond
}

// rate converts bytes per second to bits per second. All ones mean no bound.
func (r *reader) rate(f Field, offset int) int64 {
	bytesPerSecond := r.u64(f, offset)
	if bytesPerSecond > math.MaxInt64/8 {
		return Unlimited
	}
	return int64(bytesPerSecond) * 8
}

// bitFields parses the two bytes of C bit fields. Compilers fill them from the
// low end on little-endian machines and from the high end on others.
func (r *reader) bitFields(offset int) (sndWScale, rcvWScale uint8, appLimited bool) {
	scales := r.u8(FieldSndWScale, offset)
	r.u8(FieldRcvWScale, offset)
	flags := r.u8(FieldDeliveryRateAppLimited, offset+1)
	if len(r.raw) < lenWithDeliveryRate {
		r.forget(FieldDeliveryRateAppLimited)
	}
	if r.order == binary.BigEndian {
		return scales >> 4, scales & 0xf, flags&0x80 != 0
	}
	return scales & 0xf, scales >> 4, flags&1 != 0
}

// parseQueue parses the length and the bound of a listening socket's accept
// queue. The kernel reports them in the fields for unacknowledged and sacked
// segments.
func parseQueue(raw []byte, order binary.ByteOrder) (waiting, limit uint32, ok bool) {
	r := reader{raw: raw, order: order}
	state := State(r.u8(FieldState, 0))
	waiting, limit = r.u32(FieldUnacked, 24), r.u32(FieldSacked, 28)
	return waiting, limit, state == Listen && len(raw) >= 32
}
