package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// checkEmulator returns an error if the kernel's checksums are wrong. QEMU 7.2 computes
// VCKSM of s390x wrong, with which Linux 7.2 sums: it then drops every ICMP packet, and
// what was sent to a closed port has no answer.
func checkEmulator() error {
	c, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("anybody?")); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("no ICMP error about a closed port: %w: take a newer qemu (Debian 12: from backports), 7.2 has no right checksums on s390x", err)
	}
	return nil
}
