package receiver

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"longhaul/internal/find/pcap"
)

// sentBy is what an end of a connection has sent.
type sentBy struct {
	Packets, Bytes int64
	SYN, SACK, ECN bool // with its offers
}

// TestParse holds parse against package pcap, which decodes with another library, on
// captures of Linux's TCP: with its options, super-packets, losses and retransmissions.
func TestParse(t *testing.T) {
	for _, test := range []struct {
		capture string
		parsed  bool
	}{
		{"loss-receiver", true},
		{"reordering-sender", true},
		{"segment-receiver", true},
		{"window-sender", true},
		{"queue-sender", false}, // of IPv6
	} {
		t.Run(test.capture, func(t *testing.T) {
			file := "../../../../internal/find/pcap/testdata/" + test.capture + ".pcap"
			want := byPcap(t, file)
			if len(want) != 2 {
				t.Fatalf("package pcap finds %d ends, want those of one connection", len(want))
			}
			if !test.parsed {
				want = map[netip.AddrPort]sentBy{}
			}
			if diff := cmp.Diff(want, byParse(t, file)); diff != "" {
				t.Errorf("parse differs from package pcap (-pcap +parse):\n%s", diff)
			}
		})
	}
}

// byPcap returns what package pcap finds.
func byPcap(t *testing.T, file string) map[netip.AddrPort]sentBy {
	t.Helper()
	r, err := pcap.Read(open(t, file), pcap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ends := map[netip.AddrPort]sentBy{}
	for _, c := range r.Connections {
		end := func(offer pcap.Offer, d pcap.Direction) sentBy {
			return sentBy{Packets: d.Packets, Bytes: d.Bytes, SYN: offer.Seen, SACK: offer.SACK, ECN: offer.ECN}
		}
		ends[c.Client] = end(c.Handshake.Client, c.Directions[0])
		ends[c.Server] = end(c.Handshake.Server, c.Directions[1])
	}
	return ends
}

// byParse returns what parse finds.
func byParse(t *testing.T, file string) map[netip.AddrPort]sentBy {
	t.Helper()
	ends := map[netip.AddrPort]sentBy{}
	eachPacket(t, file, func(packet []byte, _ time.Time) {
		s, ok := parse(packet)
		if !ok {
			return
		}
		from := netip.AddrPortFrom(netip.AddrFrom4(s.from.address), s.from.port)
		end := ends[from]
		end.Packets++
		end.Bytes += int64(len(s.data))
		if s.flags&flagSYN != 0 {
			end.SYN, end.SACK = true, s.sackPermitted
			end.ECN = s.flags&flagECE != 0 && (s.flags&flagCWR != 0) != (s.flags&flagACK != 0) // RFC 3168, section 6.1.1
		}
		ends[from] = end
	})
	return ends
}

// TestReplies has a receiver answer what a real receiver got. Package pcap finds that the
// answers open the connection and acknowledge the same data.
func TestReplies(t *testing.T) {
	for _, capture := range []string{"loss-receiver", "segment-receiver"} {
		t.Run(capture, func(t *testing.T) {
			file := "../../../../internal/find/pcap/testdata/" + capture + ".pcap"
			kernel, err := pcap.Read(open(t, file), pcap.Options{})
			if err != nil {
				t.Fatal(err)
			}
			original := kernel.Connections[0]
			var both bytes.Buffer
			w := pcapgo.NewWriter(&both)
			if err := w.WriteFileHeader(65536, layers.LinkTypeRaw); err != nil {
				t.Fatal(err)
			}
			write := func(packet []byte, at time.Time) {
				if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(packet), Length: len(packet)}, packet); err != nil {
					t.Fatal(err)
				}
			}
			r := New(Honest)
			eachPacket(t, file, func(packet []byte, at time.Time) {
				if s, ok := parse(packet); !ok || s.from.port != original.Client.Port() {
					return
				}
				write(packet, at)
				for _, reply := range r.Handle(packet, at) {
					write(reply, at.Add(time.Microsecond))
				}
			})
			answered, err := pcap.Read(&both, pcap.Options{})
			if err != nil {
				t.Fatal(err)
			}
			c := answered.Connections[0]
			offer := pcap.Offer{Seen: true, MSS: mss, WScale: windowScale, SACK: true}
			if c.Client != original.Client || c.Server != original.Server || c.Handshake.Server != offer {
				t.Errorf("the connection from %v to %v is answered with %+v", c.Client, c.Server, c.Handshake.Server)
			}
			if got, want := c.Directions[0].Delivered, original.Directions[0].Delivered; got != want || got == 0 {
				t.Errorf("the receiver acknowledges %d bytes, the kernel %d", got, want)
			}
		})
	}
}

// eachPacket hands over the IP packets of a capture.
func eachPacket(t *testing.T, file string, f func(packet []byte, at time.Time)) {
	t.Helper()
	r, err := pcapgo.NewReader(open(t, file))
	if err != nil {
		t.Fatal(err)
	}
	if r.LinkType() != layers.LinkTypeEthernet {
		t.Fatalf("link type %v", r.LinkType())
	}
	const ethernetHeader = 14
	for {
		frame, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		// The captures have the headers alone.
		f(append(frame, make([]byte, info.Length-len(frame))...)[ethernetHeader:], info.Timestamp)
	}
}

func open(t *testing.T, file string) io.Reader {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
