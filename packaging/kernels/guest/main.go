// Command guest is the first program of a kernel that packaging/kernels boots. It
// mounts what a host has, runs the checks of its plan, and powers the machine off.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"longhaul/packaging/kernels/result"
)

func main() {
	if os.Getpid() == 1 {
		first()
		return
	}
	if err := work(); err != nil {
		fmt.Println("guest:", err)
		os.Exit(1)
	}
}

// first is process 1: it starts this program again, collects processes that lost their
// parent, and powers off. A Go program that collects them cannot wait for its own.
func first() {
	os.Setenv("PATH", "/usr/sbin:/usr/bin")
	os.Setenv("HOME", "/root")
	if err := mounts(); err != nil {
		fmt.Println("guest:", err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Println("guest:", err)
	} else {
		for {
			pid, err := unix.Wait4(-1, nil, 0, nil)
			if err == nil && pid == cmd.Process.Pid || err == unix.ECHILD {
				break
			}
		}
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("guest: power off:", err)
	}
	select {}
}

func mounts() error {
	for _, m := range []struct{ kind, at, data string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""},
		{"devpts", "/dev/pts", "ptmxmode=0666"}, {"tmpfs", "/dev/shm", ""}, {"tmpfs", "/tmp", "mode=1777"}, {"tmpfs", "/run", "mode=0755"},
		{"bpf", "/sys/fs/bpf", "mode=0700"}, {"cgroup2", "/sys/fs/cgroup", ""}, {"tracefs", "/sys/kernel/tracing", ""},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.data); err != nil {
			fmt.Printf("guest: mount %s: %v\n", m.at, err)
		}
	}
	// As on a real host, where opening the device loads its module.
	if err := os.MkdirAll("/dev/net", 0o755); err != nil {
		return err
	}
	if err := unix.Mknod("/dev/net/tun", unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200))); err != nil {
		fmt.Printf("guest: make /dev/net/tun: %v\n", err)
	}
	for _, file := range []struct{ name, text string }{
		{"/etc/passwd", "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/sh\n"},
		{"/etc/group", "root:x:0:\nnogroup:x:65534:\n"},
		{"/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"},
		{"/etc/resolv.conf", ""},                      // no name server: names fail at once
		{"/etc/protocols", "tcp 6 TCP\nudp 17 UDP\n"}, // which ip rule reads
		{"/etc/nsswitch.conf", "hosts: files\npasswd: files\n"},
	} {
		if err := os.WriteFile(file.name, []byte(file.text), 0o644); err != nil {
			return err
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: descriptors, Max: descriptors}); err != nil {
		return os.NewSyscallError("setrlimit", err)
	}
	return syscall.Sethostname([]byte("guest"))
}

// descriptors is how many a program in the guest may have, as under systemd: tests of bounds need thousands.
const descriptors = 512 << 10

func work() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	say(result.Message{Release: unix.ByteSliceToString(name.Release[:]), Machine: unix.ByteSliceToString(name.Machine[:])})
	defer say(result.Message{Done: true})
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up: %w: %s", err, out)
	}
	if _, err := os.Stat(result.ScriptFile); err == nil {
		cmd := exec.Command("sh", result.ScriptFile)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		return cmd.Run()
	}
	if err := checkEmulator(); err != nil {
		say(result.Message{Check: &result.Check{Name: "emulator", Status: result.Failed, Detail: sentence(err.Error())}})
		return nil
	}
	b, err := os.ReadFile(result.PlanFile)
	if err != nil {
		return err
	}
	var plan result.Plan
	if err := json.Unmarshal(b, &plan); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	for _, name := range plan.Checks {
		run(name, plan)
	}
	return nil
}

func say(m result.Message) {
	if err := result.Write(os.Stdout, m); err != nil {
		fmt.Println("guest:", err)
	}
}

// sentence is what a message says, in one line.
func sentence(s string) string {
	return strings.Join(strings.Fields(s), " ")
}
