package link

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// segmentationKept lists the offloads that the emulator can cut into packets.
var segmentationKept = map[string]bool{
	"tx-tcp-segmentation":     true,
	"tx-tcp6-segmentation":    true,
	"tx-tcp-ecn-segmentation": true,
	"tx-generic-segmentation": true, // software segmentation
}

// keepSegmentation disables every other segmentation offload of a device (of
// UDP, SCTP, tunnels, fragment lists). So its kernel sends those as wire
// packets. ns may differ from the thread's namespace.
func keepSegmentation(ns netns.NsHandle, device string) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- setFeatures(device)
	}()
	return <-done
}

const featureStrings = 4 // ETH_SS_FEATURES of linux/ethtool.h

// setFeatures uses the ethtool requests of ioctl(2) in linux/ethtool.h.
func setFeatures(device string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request := func(data []byte) error {
		var r struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [24 - unsafe.Sizeof(uintptr(0))]byte
		}
		copy(r.name[:unix.IFNAMSIZ-1], device)
		r.data = unsafe.Pointer(&data[0])
		var pin runtime.Pinner
		pin.Pin(&data[0])
		defer pin.Unpin()
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r))); errno != 0 {
			return errno
		}
		return nil
	}
	words := func(b []byte) []uint32 { return unsafe.Slice((*uint32)(unsafe.Pointer(&b[0])), len(b)/4) }

	// struct ethtool_sset_info: cmd, reserved, mask of sets (64 bits), lengths.
	info := make([]byte, 20)
	words(info)[0] = unix.ETHTOOL_GSSET_INFO
	*(*uint64)(unsafe.Pointer(&info[8])) = 1 << featureStrings
	if err := request(info); err != nil {
		return fmt.Errorf("count features: %w", err)
	}
	count := int(words(info)[4])

	// struct ethtool_gstrings: cmd, set, length, names of 32 bytes.
	const nameBytes = 32
	names := make([]byte, 12+count*nameBytes)
	words(names[:12])[0], words(names[:12])[1], words(names[:12])[2] = unix.ETHTOOL_GSTRINGS, featureStrings, uint32(count)
	if err := request(names); err != nil {
		return fmt.Errorf("list features: %w", err)
	}

	// struct ethtool_sfeatures: cmd, blocks, then (valid, requested) of 32 features each.
	blocks := (count + 31) / 32
	set := make([]byte, 8+8*blocks)
	words(set)[0], words(set)[1] = unix.ETHTOOL_SFEATURES, uint32(blocks)
	for i := range count {
		name := names[12+i*nameBytes:][:nameBytes]
		name, _, _ = bytes.Cut(name, []byte{0})
		offload := bytes.HasPrefix(name, []byte("tx-")) && (bytes.HasSuffix(name, []byte("-segmentation")) || bytes.Equal(name, []byte("tx-gso-list")))
		if offload && !segmentationKept[string(name)] {
			words(set)[2+2*(i/32)] |= 1 << (i % 32)
		}
	}
	if err := request(set); err != nil {
		return fmt.Errorf("set features: %w", err)
	}
	return nil
}
