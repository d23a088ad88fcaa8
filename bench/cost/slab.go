package main

import (
	"os"
	"strconv"
	"strings"
)

// socketSlabs are the kernel's caches of what an idle socket that epoll watches consists of. dentry is not among
// them: whatever looks at files on the machine changes it. It adds 192 bytes a socket.
var socketSlabs = map[string]bool{"TCP": true, "TCPv6": true, "sock_inode_cache": true, "filp": true, "eventpoll_epi": true, "eventpoll_pwq": true}

// socketMemory is the number of bytes that the kernel has in them, on the whole machine; 0 if this user may not
// read that.
func socketMemory() (bytes int64) {
	text, err := os.ReadFile("/proc/slabinfo")
	if err != nil {
		return 0
	}
	return parseSlabs(string(text))
}

// parseSlabs adds up active objects times their size (slabinfo(5)).
func parseSlabs(text string) (bytes int64) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 4 || !socketSlabs[f[0]] {
			continue
		}
		active, _ := strconv.ParseInt(f[1], 10, 64)
		size, _ := strconv.ParseInt(f[3], 10, 64)
		bytes += active * size
	}
	return bytes
}
