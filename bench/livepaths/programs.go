package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"longhaul/lab"
	"longhaul/test/pgserver"
)

// nginx serves the scene's directory on port 8080 of a host, with options of the listener
// and lines of its server.
func (s *scene) nginx(host, listen, server string) error {
	config, err := s.write("nginx.conf", strings.NewReplacer("DIR", s.dir, "LISTEN", listen, "SERVER", server).Replace(`daemon off;
user root;
worker_processes 1;
pid DIR/nginx.pid;
error_log stderr;
events {}
http {
  access_log off; sendfile on; keepalive_requests 1000000;
  client_body_temp_path DIR; proxy_temp_path DIR; fastcgi_temp_path DIR; uwsgi_temp_path DIR; scgi_temp_path DIR;
  server { listen 8080 LISTEN; listen [::]:8080; root DIR; SERVER }
}
`))
	if err != nil {
		return err
	}
	return s.daemon(host, 8080, "nginx", "-c", config, "-e", "stderr")
}

// large is the size of a file that no path carries in time.
const large = 8 << 30

// download has curl on host-b get a large file from nginx on host-a.
func (s *scene) download(listen, server string, curl ...string) error {
	if _, err := s.file("large", large); err != nil {
		return err
	}
	if err := s.nginx("host-a", listen, server); err != nil {
		return err
	}
	return s.client("host-b", "curl", append([]string{"-s", "-o", "/dev/null", "http://10.10.10.10:8080/large"}, curl...)...)
}

// plain is download without options.
func plain(s *scene) error { return s.download("", "") }

// sshd starts an SSH server on host-b, and returns a command of ssh that logs in there.
func (s *scene) sshd() (ssh string, err error) {
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // of the sandbox
		return "", err
	}
	for _, key := range []string{"host", "user"} {
		out, err := exec.CommandContext(s.ctx, lab.FindProgram("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(s.dir, key)).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("ssh-keygen: %w: %s", err, out)
		}
	}
	config, err := s.write("sshd_config", strings.ReplaceAll(`Port 22
HostKey DIR/host
AuthorizedKeysFile DIR/user.pub
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
Subsystem sftp internal-sftp
PidFile none
`, "DIR", s.dir))
	if err != nil {
		return "", err
	}
	if err := s.daemon("host-b", 22, "sshd", "-D", "-e", "-f", config); err != nil {
		return "", err
	}
	return "ssh " + s.sshOptions(), nil
}

func (s *scene) sshOptions() string {
	return "-F none -i " + s.dir + "/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
}

// atB is host-b's user.
const atB = "root@10.20.20.10"

// upload has ssh on host-a send a large file to host-b. before is a command of the shell that
// becomes ssh.
func (s *scene) upload(before string) error {
	ssh, err := s.sshd()
	if err != nil {
		return err
	}
	from, err := s.file("large", large)
	if err != nil {
		return err
	}
	return s.shell("host-a", before+"exec "+ssh+" "+atB+" 'cat > /dev/null' < "+from)
}

// pipe has a command of host-a write into ssh.
func (s *scene) pipe(command string) error {
	ssh, err := s.sshd()
	if err != nil {
		return err
	}
	return s.shell("host-a", command+" | "+ssh+" "+atB+" 'cat > /dev/null'")
}

// scp copies a large file to host-b.
func (s *scene) scp(options string) error {
	if _, err := s.sshd(); err != nil {
		return err
	}
	from, err := s.file("large", large)
	if err != nil {
		return err
	}
	return s.shell("host-a", fmt.Sprintf("exec scp %s %s %s %s:/dev/null", options, s.sshOptions(), from, atB))
}

// rsync copies a large file to a directory of host-b.
func (s *scene) rsync(options string) error {
	ssh, err := s.sshd()
	if err != nil {
		return err
	}
	from, err := s.file("large", large)
	if err != nil {
		return err
	}
	return s.shell("host-a", fmt.Sprintf("exec rsync -W %s -e '%s' %s %s:%s/copy", options, ssh, from, atB, s.dir))
}

// bulk starts n connections of nc that send from host-a to host-b, to ports from 7001 on.
func (s *scene) bulk(n int) error {
	for i := range n {
		port := fmt.Sprint(7001 + i)
		if err := s.shell("host-b", "exec nc -l -p "+port+" > /dev/null"); err != nil {
			return err
		}
		if err := s.listening("host-b", uint16(7001+i)); err != nil {
			return err
		}
		if err := s.shell("host-a", "exec nc -N 10.20.20.10 "+port+" < /dev/zero"); err != nil {
			return err
		}
	}
	return nil
}

// sink starts nc on host-b, which reads port 7000, and a command of host-a that writes there.
func (s *scene) sink(command string) error {
	if err := s.shell("host-b", "exec nc -l -p 7000 > /dev/null"); err != nil {
		return err
	}
	if err := s.listening("host-b", 7000); err != nil {
		return err
	}
	return s.shell("host-a", command+" | exec nc 10.20.20.10 7000")
}

func (s *scene) listening(host string, port uint16) error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		is, err := s.Host(host).Listening(port)
		if err != nil || is {
			return err
		}
		if err := sleep(s.ctx, 10*time.Millisecond); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("nothing listens on port %d of %s", port, host)
		}
	}
}

// python runs a program of Python in a host.
func (s *scene) python(host, text string) error {
	name, err := s.write(fmt.Sprintf("program%d.py", len(s.closers)), text)
	if err != nil {
		return err
	}
	python := "/usr/bin/python3" // not a wrapper in the PATH
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	return s.client(host, python, name)
}

// reads has a program on host-b read what nginx on host-a sends: each time so many bytes,
// then a pause.
func (s *scene) reads(bytes int, pause time.Duration, times int) error {
	if _, err := s.file("large", large); err != nil {
		return err
	}
	if err := s.nginx("host-a", "", ""); err != nil {
		return err
	}
	return s.python("host-b", fmt.Sprintf(`import socket, time
s = socket.create_connection(("10.10.10.10", 8080))
s.sendall(b"GET /large HTTP/1.0\r\n\r\n")
for i in range(%d):
    left = %d
    while left > 0:
        left -= len(s.recv(min(left, 65536)))
    time.sleep(%g)
time.sleep(1000)
`, times, bytes, pause.Seconds()))
}

// exchange has programs on host-a and host-b take turns: host-a writes some pieces, each by
// itself, and reads an answer.
func (s *scene) exchange(pieces, answer int, sizes string) error {
	if err := s.python("host-b", fmt.Sprintf(`import socket
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind(("", 7000)); l.listen()
c, _ = l.accept()
pieces = %s
while True:
    left = sum(pieces) * %d
    while left > 0:
        b = c.recv(left)
        if not b: raise SystemExit
        left -= len(b)
    c.sendall(b"a" * %d)
`, sizes, pieces, answer)); err != nil {
		return err
	}
	if err := s.listening("host-b", 7000); err != nil {
		return err
	}
	return s.python("host-a", fmt.Sprintf(`import socket
s = socket.create_connection(("10.20.20.10", 7000))
pieces = %s
while True:
    for i in range(%d):
        for n in pieces:
            s.sendall(b"q" * n)
    left = %d
    while left > 0:
        b = s.recv(left)
        if not b: raise SystemExit
        left -= len(b)
`, sizes, pieces, answer))
}

// postgres starts PostgreSQL on host-b, which trusts everybody.
func (s *scene) postgres() error {
	bin := pgserver.Programs()
	dir := filepath.Join(s.dir, "pg")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(s.b.Dir, 0o755)); err != nil {
		return err
	}
	if out, err := exec.CommandContext(s.ctx, "chown", "postgres", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("chown: %w: %s", err, out)
	}
	as := func(args ...string) []string {
		return append([]string{"--reuid=postgres", "--regid=postgres", "--clear-groups"}, args...)
	}
	if out, err := exec.CommandContext(s.ctx, "setpriv", as(bin+"/initdb", "-D", dir+"/data", "-A", "trust", "-N")...).CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	hba := filepath.Join(dir, "data", "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("host all all 0.0.0.0/0 trust\n"), 0o644); err != nil {
		return err
	}
	if err := os.Chmod(hba, 0o644); err != nil {
		return err
	}
	if err := s.daemon("host-b", 5432, "setpriv", as(bin+"/postgres", "-D", dir+"/data", "-h", "*", "-k", dir, "-c", "fsync=off")...); err != nil {
		return err
	}
	for try := 0; ; try++ { // it listens before it answers
		out, err := s.psql("select 1")
		if err == nil {
			return nil
		}
		if try == 100 {
			return fmt.Errorf("psql: %w: %s", err, out)
		}
		if err := sleep(s.ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

const psql = "psql -q -h 10.20.20.10 -U postgres postgres"

// psql runs statements on host-a.
func (s *scene) psql(statements string) ([]byte, error) {
	cmd := exec.CommandContext(s.ctx, "psql", "-q", "-v", "ON_ERROR_STOP=1", "-h", "10.20.20.10", "-U", "postgres", "-c", statements, "postgres")
	said := &output{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := s.Host("host-a").Start(cmd); err != nil {
		return nil, err
	}
	err := cmd.Wait()
	return []byte(said.String()), err
}

// The CPU controllers of control groups, in version 1 and 2.
const (
	cpuV1 = "/sys/fs/cgroup/cpu"
	cpuV2 = "/sys/fs/cgroup"
)

// cgroupPrefix begins the names of this program's control groups.
const cgroupPrefix = "longhaul-livepaths-"

// cgroup makes a control group that has a share of a CPU, and returns its directory.
func (s *scene) cgroup(share float64) (string, error) {
	const period = 100_000 // µs
	quota := int(share * period)
	root, file, text := cpuV1, "cpu.cfs_quota_us", fmt.Sprint(quota)
	if _, err := os.Stat(cpuV2 + "/cgroup.controllers"); err == nil {
		root, file, text = cpuV2, "cpu.max", fmt.Sprintf("%d %d", quota, period)
	}
	dir, err := os.MkdirTemp(root, cgroupPrefix)
	if err != nil {
		return "", fmt.Errorf("make a control group: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
		return "", fmt.Errorf("bound the CPU time of a control group: %w", err)
	}
	return dir, nil
}

// removeCgroups removes this program's control groups that have no process.
func removeCgroups() {
	for _, root := range []string{cpuV1, cpuV2} {
		old, _ := filepath.Glob(filepath.Join(root, cgroupPrefix+"*"))
		for _, dir := range old {
			_ = os.Remove(dir)
		}
	}
}
