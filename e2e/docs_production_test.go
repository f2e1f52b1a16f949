package e2e

// Proven here alone: "In production" works on a machine with systemd, Caddy, nginx, Prometheus,
// and, as far as it is imitated, Docker. It has the machines of other tests too.

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestTheServiceRunsInProductionAsDocumented follows that section of the
// documents, from top to bottom and as root, on a machine of its own: the files
// are those that people copy; Debian's systemd starts the service, Caddy and
// nginx; after some of the steps the test looks whether they did what they are for.
func TestTheServiceRunsInProductionAsDocumented(t *testing.T) {
	t.Parallel()
	needs(t, "caddy", "nginx", "prometheus", "prometheus-alertmanager", "prometheus-node-exporter",
		"prometheus-blackbox-exporter")
	repository := snapshot(t)
	m := bootMachine(t, repository)
	m.values["<this repository>"] = repository
	m.run("cd /root")
	m.prepareProxies()
	m.run(dockerStandIn)
	m.run("export PETSTORE_DB=/var/lib/petstore/petstore.db")
	const other = "CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -o petstore-linux-arm64 ."
	checks := map[string]func(){
		"CGO_ENABLED=0 go build .": m.checkVersion,
		other:                      m.checkOther,
		"petstore key list -db /var/lib/petstore/petstore.db":  m.checkUnit,
		"systemctl start petstore.socket petstore":             m.checkRestored,
		"W=/root/damage; mkdir -p $W":                          m.checkMended,
		"[ ! -e $D-wal ] || mv $D-wal $D-wal.old":              func() { m.checkKept(1) },
		"rm -f $D $D-wal $D-shm":                               func() { m.checkKept(2) },
		"NOW=$(date -u +%Y%m%dT%H%M%SZ)":                       m.checkUpgrade,
		"install /root/petstore-$NOW /usr/local/bin/petstore":  m.checkRollback,
		"systemctl restart prometheus-alertmanager prometheus": m.checkAlerts,
		"systemctl restart caddy":                              m.checkCaddy,
		"systemctl restart nginx":                              m.checkNginx,
		"systemctl restart petstore caddy":                     m.checkPrefix,
		"docker cp petstore:/data/$COPY .":                     m.checkContainer,
		"docker start petstore":                                m.checkContainerRestored,
	}
	for _, d := range readDocuments(t) {
		for _, b := range d.blocks {
			if b.section != production {
				continue
			}
			m.makeRoom(b)
			m.follow(b)
			for _, c := range b.commands() {
				if check := checks[c.line]; check != nil {
					check()
					delete(checks, c.line)
				}
			}
		}
	}
	for command := range checks {
		t.Errorf("the documents no longer have the command %q, after which something is checked",
			command)
	}
}

// machine is a copy of this machine with an init, a network and processes of
// its own. What is written there is gone when the test ends.
type machine struct {
	*terminal        // a shell of root's
	pid       string // of its first process
	sources   int    // addresses that callers without a key had
	upgrade   string // the block of commands
	mend      string // that of a damaged database
}

// hostScript makes the machine's root, which is this machine's with a layer in
// memory above it, and a control group, and boots it.
const hostScript = `set -e
root=$1
mount -t tmpfs none "$root"
mkdir "$root"/{changes,work,groups,machine}
mount -t overlay -o lowerdir=/,upperdir="$root/changes",workdir="$root/work" none "$root/machine"
mount -t cgroup2 none "$root/groups"
group=$root/groups/petstore-e2e-$$
mkdir "$group"
echo $$ >"$group/cgroup.procs"
unshare --mount --net --pid --ipc --uts --cgroup --fork --kill-child \
	bash -c "$BOOT" boot "$@" || true
echo $$ >"$root/groups/cgroup.procs"
find "$group" -depth -type d -exec rmdir {} +
`

// bootScript is the first process of the machine, and then becomes systemd. It
// tells its process id as it is outside. It has no devices, cannot change the
// kernel's settings, and starts nothing that would see to hardware. Mounts are shared, as
// systemd makes them where it is not in a container, so that it can hand over credentials.
const bootScript = `set -e
read -r pid _ </proc/self/stat
cd "$1/machine"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 none sys/fs/cgroup
mount -t tmpfs none run
mount -t tmpfs none dev
for device in null zero full random urandom tty; do
	touch dev/$device
	mount --bind /dev/$device dev/$device
done
ln -s /proc/self/fd dev/fd
ln -s pts/ptmx dev/ptmx
mkdir dev/shm
for shared in "${@:2}"; do
	mkdir -p ".$shared"
	mount --bind "$shared" ".$shared"
done
ip link set lo up
printf '127.0.0.1 pets.example.com\n::1 localhost\n' >>etc/hosts
rm -rf etc/fstab var/lib/petstore var/lib/private/petstore
rm -r lib/systemd/system/{sysinit,local-fs}.target.wants
printf '[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service\n' \
	>etc/systemd/system/e2e.target
pivot_root . mnt
umount -l mnt
mount --make-rshared /
echo "$pid"
exec env -i container=e2e PATH="$PATH" \
	setpriv --bounding-set=-sys_module,-sys_rawio,-sys_time \
	/lib/systemd/systemd --unit=e2e.target --show-status=no
`

// needs ends the test unless there are these commands, and those of every machine.
func needs(t *testing.T, commands ...string) {
	t.Helper()
	for _, command := range append(commands, "systemd-analyze", "nsenter", "ip", "curl",
		"openssl") {
		if _, err := exec.LookPath(command); err != nil {
			t.Fatalf("install Debian's systemd, iproute2, curl, openssl, caddy, nginx-light, "+
				"haproxy, prometheus, prometheus-alertmanager, prometheus-node-exporter and "+
				"prometheus-blackbox-exporter: %v", err)
		}
	}
	if os.Getuid() != 0 {
		t.Fatal("only root can make namespaces, mount and boot systemd")
	}
}

// bootMachine boots one and opens a shell there. It shares folders and the caches of
// Go with this machine.
func bootMachine(t *testing.T, shared ...string) *machine {
	t.Helper()
	m := &machine{}
	caches, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	noError(t, err)
	args := append([]string{"--mount", "bash", "-c", hostScript, "host", t.TempDir()}, shared...)
	host := exec.Command("unshare", append(args, strings.Fields(string(caches))...)...)
	host.Env = append(os.Environ(), "BOOT="+bootScript)
	log := &logBuffer{}
	host.Stderr = log
	stdout, err := host.StdoutPipe()
	noError(t, err)
	noError(t, host.Start())
	pid, err := bufio.NewReader(stdout).ReadString('\n')
	m.pid = strings.TrimSpace(pid)
	t.Cleanup(func() {
		if out, err := exec.Command("kill", "-KILL", m.pid).CombinedOutput(); err != nil {
			t.Errorf("kill: %v\n%s", err, out)
		}
		if err := host.Wait(); err != nil {
			t.Errorf("the machine ended with %v\n%s", err, log)
		}
	})
	if err != nil {
		t.Fatalf("the machine did not boot: %v\n%s", err, log)
	}
	m.terminal = newTerminal(t, "nsenter", "--target", m.pid, "--mount", "--net", "--pid", "--ipc",
		"--uts", "--cgroup", "--root", "--wd", "bash")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.run("journalctl --no-pager --quiet --unit petstore --unit caddy --unit nginx " +
				"--unit rqlite --unit haproxy"))
		}
	})
	m.run(within("systemctl is-active --quiet e2e.target 2>/dev/null"))
	m.run(eavesdropper + " >/tmp/overheard 2>&1 & echo $! >/tmp/eavesdropper")
	m.run(within(`ss -Hltn | grep -q "\[::1\]:9115 "`))
	return m
}

// eavesdropper stands for another user of the machine, who listens where localhost leads first.
const eavesdropper = `python3 -c '
import selectors, socket
waiting = selectors.DefaultSelector()
for port in 8080, 6060, 9090, 9093, 9100, 9115:
    server = socket.create_server(("::1", port), family=socket.AF_INET6)
    waiting.register(server, selectors.EVENT_READ)
while True:
    for key, _ in waiting.select():
        caller, _ = key.fileobj.accept()
        print(key.fileobj.getsockname(), caller.recv(1000), flush=True)
        caller.close()
'`

// checkUnheard ends the eavesdropper, whom nobody should have called.
func (m *machine) checkUnheard() {
	m.t.Helper()
	if heard := m.run("kill $(cat /tmp/eavesdropper) && cat /tmp/overheard"); heard != "" {
		m.t.Errorf("another user of the machine got\n%s", heard)
	}
}

// callAllTheTime calls the service without a pause, until the file is there, as its clients may
// while it is restored, for which an operator is slow. On its socket that would start it.
func (m *machine) callAllTheTime(until string) {
	m.t.Helper()
	m.run(`petstore() { sleep 2; unset -f petstore; petstore "$@"; }`)
	m.run("rm -f " + until + "; timeout 600 bash -c 'until [ -e " + until +
		" ]; do curl -s -m 30 -o /dev/null 127.0.0.1:8080/openapi.json; done; true' >/dev/null " +
		"2>&1 &")
}

// makeRoom stops what would be in the way of a block, and has systemd forget how
// often it has started the service: no operator is as fast as this test.
func (m *machine) makeRoom(b *block) {
	m.run("systemctl reset-failed petstore 2>/dev/null || true")
	switch text := b.text(); {
	case strings.HasPrefix(text, "cp docs/deploy/nginx.conf"), strings.HasPrefix(text,
		"cp docs/deploy/Caddyfile.prefix"):
		m.run("systemctl stop caddy nginx")
	case strings.HasPrefix(text, "systemctl stop petstore.socket petstore"):
		m.callAllTheTime("/tmp/restored")
	case strings.Contains(text, "W=/root/damage"):
		m.damageDatabase()
		m.mend = text
	case strings.HasPrefix(text, "D="):
		m.loseDatabase()
	case strings.HasPrefix(text, "NOW="):
		m.upgrade = text
		m.run(`timeout 600 bash -c 'until [ -e /tmp/upgraded ]; do
			curl -sS -m 30 -o /dev/null -w "%{http_code}\n" 127.0.0.1:8080/openapi.json
			curl -ksS -m 30 -o /dev/null -w "%{http_code}\n" \
				https://pets.example.com/shop/openapi.json
		done' >/tmp/statuses 2>&1 &`)
	case strings.HasPrefix(text, "docker build"):
		m.checkUnheard()
		m.run("systemctl stop petstore.socket petstore caddy nginx")
	}
}

// damageDatabase spoils the page of a pet that the last copy has, once a newer one was confirmed.
// No operator is so fast that two copies get one name.
func (m *machine) damageDatabase() {
	m.t.Helper()
	m.run(`seq 3000 | sed 's/.*/{"name":"stock &","categoryId":1}/' | petstore pet import - &&
		sleep 1 && systemctl start petstore-backup`)
	m.curl(201, "Authorization: Bearer "+m.newKey(), "http://127.0.0.1:8080/v1/pets", "-d",
		animalJSON("newer"))
	m.run(`petstore pet export | grep -E 'stock 1500"|newer' >/root/wanted &&
		systemctl stop petstore.socket petstore &&
		at=$(grep -abo 'stock 1500' $PETSTORE_DB | head -n 1 | cut -d : -f 1) &&
		dd if=/dev/urandom of=$PETSTORE_DB bs=4096 count=1 seek=$((at / 4096)) conv=notrunc &&
		systemctl start petstore.socket petstore && sleep 1`)
}

// checkMended looks for a pet that was in the damage, and one that no copy had, under their ids:
// after the block, after it is pasted again, after it has met a file that nobody can read, and
// after a copy was written over the file of a service, whose log alone has the newest pet.
func (m *machine) checkMended() {
	m.t.Helper()
	const wanted = "petstore pet export | grep -Fxf /root/wanted | cmp - /root/wanted && " +
		"systemctl is-active petstore.socket petstore"
	for _, happens := range []string{"true", "systemctl stop petstore.socket petstore && " +
		"rm -r $W $D.damaged* && printf damaged | dd of=$D conv=notrunc && mkdir $W && " +
		"touch $W/saved.jsonl", `rm -r $W $D.damaged* && mkdir $W && LAST=$COPY &&
		echo '{"name":"newer still","categoryId":1}' | petstore pet import - &&
		petstore pet export | grep -E 'stock 1500"|newer' >/root/wanted && cp $LAST $D && sleep 2 &&
		! petstore key list`} {
		m.waitUntilReady()
		m.run(wanted)
		m.run(happens)
		// Nor so fast that systemd starts no more.
		m.run("sleep 1; systemctl reset-failed\n" + m.mend)
	}
	m.waitUntilReady()
	m.run(wanted)
}

// loseDatabase deletes the database under the service, which has just confirmed a pet.
func (m *machine) loseDatabase() {
	m.t.Helper()
	m.waitUntilReady()
	key := m.newKey()
	m.curl(201, "Authorization: Bearer "+key, "http://127.0.0.1:8080/v1/pets", "-d",
		animalJSON("Kept"))
	m.run("rm /var/lib/petstore/petstore.db && timeout 60 sh -c " +
		"'until ls /var/lib/petstore/petstore.db.*.saved; do sleep 0.1; done' 2>/dev/null")
}

// checkKept looks whether all pets that were confirmed before losses are there.
func (m *machine) checkKept(losses int) {
	m.t.Helper()
	m.waitUntilReady()
	m.run(fmt.Sprintf("[ $(petstore pet export | grep -c Kept) = %d ]", losses))
	m.run("rm -f /var/lib/petstore/petstore.db.*.saved")
}

// checkVersion looks for the commit in what was built.
func (m *machine) checkVersion() {
	m.t.Helper()
	commit := strings.TrimSpace(m.run("git rev-parse HEAD"))
	if version := m.run("./petstore version"); !strings.Contains(version, commit[:12]) ||
		strings.Contains(version, "dirty") {
		m.t.Errorf("built from the commit %s, it says %q", commit, version)
	}
}

// checkOther looks whether the program for another processor knows its commit too.
func (m *machine) checkOther() {
	m.t.Helper()
	build := m.run("go version -m petstore-linux-arm64")
	for _, setting := range []string{"GOOS=linux", "GOARCH=arm64", "vcs.modified=false"} {
		if !strings.Contains(build, "\t"+setting+"\n") {
			m.t.Errorf("it was not built with %s:\n%s", setting, build)
		}
	}
}

// checkUnit asks systemd what it thinks of the unit, and looks whether the
// service and the commands of root get along in its directory.
func (m *machine) checkUnit() {
	m.t.Helper()
	const unit = "/etc/systemd/system/petstore.service"
	m.run("ln -sf /bin/true /usr/local/bin/litestream") // which the other unit names
	if complaints := m.run("systemd-analyze verify " + unit +
		" docs/deploy/petstore.socket docs/deploy/litestream.service 2>&1"); complaints != "" {
		m.t.Errorf("systemd-analyze verify: %s", complaints)
	}
	// 1.5 of 10, which systemd calls OK
	m.run("systemd-analyze security --offline=true --threshold=15 " + unit)
	m.waitUntilReady()
	key := m.newKey()
	m.curl(201, "Authorization: Bearer "+key, "http://127.0.0.1:8080/v1/pets", "-d", rex)

	// A kill leaves a -wal behind, which root or the service may open first.
	m.run("systemctl kill --signal=KILL petstore; petstore key list")
	m.waitUntilReady()
	m.curl(201, "Authorization: Bearer "+key, "http://127.0.0.1:8080/v1/pets", "-d", rex)
	m.run("systemctl stop petstore.socket petstore")
	key = m.newKey()
	m.run("systemctl start petstore.socket petstore")
	m.waitUntilReady()
	m.curl(201, "Authorization: Bearer "+key, "http://127.0.0.1:8080/v1/pets", "-d", rex)
	strange := m.run("find /var/lib/petstore/ ! -user $(stat --format %u /var/lib/petstore/)")
	if user := m.run("stat --format %u /var/lib/petstore/"); strange != "" || user == "0\n" {
		m.t.Errorf("the directory of the service is that of the user %s, and these are not: %s",
			user, strange)
	}
}

// checkRestored looks whether the restored service knows the pets of the backup,
// and gives out no id that another may have.
func (m *machine) checkRestored() {
	m.t.Helper()
	m.run("touch /tmp/restored && wait $!")
	m.waitUntilReady()
	key := m.newKey()
	head, _ := m.curl(201, "Authorization: Bearer "+key, "http://127.0.0.1:8080/v1/pets", "-d", rex)
	if id := find(locationHeader, head); !regexp.MustCompile(`/pets/1\d{6}$`).MatchString(id) {
		m.t.Errorf("the first pet after a restore is at %s", id)
	}
}

// checkAlerts waits until Prometheus reads the service and the node exporter, and knows
// Alertmanager. None of them listens to other machines.
func (m *machine) checkAlerts() {
	m.t.Helper()
	m.run("sed -i 's/_interval: 15s/_interval: 1s/' /etc/prometheus/prometheus.yml && " +
		"systemctl restart prometheus") // so that the test need not wait for it
	m.run(within(`curl -fsG 127.0.0.1:9090/api/v1/query \
		--data-urlencode 'query=count(up == 1) == 3' | grep -q value`))
	m.run(within(`curl -fs 127.0.0.1:9090/api/v1/alertmanagers |
		grep -q '"url":"http://127.0.0.1:9093/'`))
	m.run(`curl -fs --retry 30 --retry-connrefused -o /dev/null 127.0.0.1:9093/-/ready`)
	open := m.run(`ss -Hltn | grep -E ':9(09.|100|115) ' |
		grep -vE ' (127.0.0.1|\[::1\]):9' || true`)
	if open != "" {
		m.t.Errorf("other machines reach\n%s", open)
	}
	// both are 200
	for page, success := range map[string]string{"8080/readyz": "1", "9090/-/healthy": "0"} {
		m.run(within("curl -fs '127.0.0.1:9115/probe?module=http_2xx&target=http://127.0.0.1:" +
			page + "' | grep '^probe_success " + success + "'"))
	}
	m.run("mount -t tmpfs -o size=64k none /var/backups && ! systemctl start petstore-backup && " +
		"umount /var/backups")
	m.t.Logf("Alertmanager has of the backup that failed:\n%s",
		m.run(within("amtool --alertmanager.url=http://127.0.0.1:9093 alert query "+
			"alertname=PetstoreUnitFailed | grep petstore-backup.service | grep $(date -u +%F)")))
	// which has a mail of its own
	m.run("amtool --alertmanager.url=http://127.0.0.1:9093 alert add another")
	m.run(within(`[ $(curl -fs 127.0.0.1:9093/api/v2/alerts/groups |
		grep -o '"receiver":' | wc -l) -ge 2 ]`))
	m.run("systemctl stop prometheus-{node-exporter,blackbox-exporter,alertmanager} prometheus")
}

// checkUpgrade looks what a client has seen that has connected again and again during the upgrade,
// which is repeated. One whose backup fails installs nothing.
func (m *machine) checkUpgrade() {
	m.t.Helper()
	_, commands, _ := strings.Cut(m.upgrade, "\n")
	m.run("touch /tmp/before && ! { " + commands +
		"} && [ ! /usr/local/bin/petstore -nt /tmp/before ]")
	m.run("sleep 1 && " + m.upgrade)
	if kept := m.run("ls /root/petstore-2*"); strings.Count(kept, "\n") != 4 {
		m.t.Errorf("of two upgrades these are kept:\n%s", kept)
	}
	m.run("systemctl restart petstore")
	m.waitUntilReady()
	m.run("touch /tmp/upgraded && wait $!")
	if strange := m.run("grep -v '^200$' /tmp/statuses || true"); strange != "" {
		m.t.Errorf("during upgrades a client has seen\n%s", strange)
	}
	m.t.Logf("during upgrades a client has had %s responses",
		strings.TrimSpace(m.run("wc -l </tmp/statuses")))
	m.run("systemctl stop petstore.socket petstore && ! curl -s 127.0.0.1:8080 && ! systemctl " +
		"is-active --quiet petstore")
	m.run("systemctl start petstore.socket petstore")
	m.waitUntilReady()

	// A new version that does not start, and the way back.
	m.run("mv /usr/local/bin/petstore good && cp /bin/false /usr/local/bin/petstore && systemctl " +
		"restart petstore")
	m.run(within("curl -s -m 1 127.0.0.1:8080; systemctl is-failed --quiet petstore.socket") +
		" && mv good /usr/local/bin/petstore")
	m.run("systemctl reset-failed petstore && systemctl restart petstore.socket petstore")
	m.waitUntilReady()
	m.run("systemctl is-active petstore.socket petstore")

	// a version that does not start
	m.run("cp --remove-destination /bin/false /usr/local/bin/petstore")
}

// checkRollback looks whether the program of before is back.
func (m *machine) checkRollback() {
	m.t.Helper()
	m.waitUntilReady()
	m.run("cmp /usr/local/bin/petstore /root/petstore-$NOW")
	m.run("systemctl stop petstore.socket petstore && petstore restore -db " +
		"/var/lib/petstore/petstore.db /root/petstore-$NOW.db && systemctl start petstore.socket " +
		"petstore")
	m.waitUntilReady()
	m.run("touch /tmp/restored && wait $!")
	m.run("petstore pet export -db $(ls /var/lib/petstore/petstore.db.*.old | tail -n 1) | grep " +
		"-q Rex")
}

func (m *machine) waitUntilReady() {
	m.t.Helper()
	m.run(within("curl -fs -o /dev/null 127.0.0.1:6060/readyz"))
}

// newKey makes a key, and waits until the service takes it if it runs.
func (m *machine) newKey() string {
	m.t.Helper()
	key := strings.TrimSpace(m.run("petstore key create -plan business"))
	m.run("! systemctl is-active --quiet petstore || " + untilTaken(key))
	return key
}

// untilTaken waits for the service to take a key. It does within a second.
func untilTaken(key string) string {
	return within("curl -fs -o /dev/null -H 'Authorization: Bearer " + key +
		"' 127.0.0.1:8080/v1/pets")
}

// curl sends a request with one header and returns the head and the body of the answer.
func (m *machine) curl(status int, header, url string, flags ...string) (head, body string) {
	m.t.Helper()
	command := fmt.Sprintf("curl -si -H %q -H 'Content-Type: application/json' %q", header, url)
	for _, flag := range flags {
		command += fmt.Sprintf(" '%s'", flag)
	}
	head, body, _ = strings.Cut(m.run(command), "\r\n\r\n")
	if got := strings.Fields(head + " - -")[1]; got != fmt.Sprint(status) {
		m.t.Errorf("%s: status %s, expected %d\n%s\n%s", command, got, status, head, body)
	}
	return head, body
}

// Certificates: of the authority that Caddy makes, and of nginx.
const (
	caddyRoot   = "/var/lib/caddy/.local/share/caddy/pki/authorities/local/root.crt"
	certificate = "/etc/letsencrypt/live/pets.example.com/fullchain.pem"
)

// prepareProxies does for the proxies what a certificate authority would: it
// makes nginx's certificate, and lets Caddy make its own rather than ask for one.
func (m *machine) prepareProxies() {
	m.t.Helper()
	m.run("mkdir -p /etc/letsencrypt/{live/pets.example.com,renewal-hooks/deploy}")
	m.renewCertificate()
	m.write("/etc/caddy/e2e.caddyfile",
		"{\n\tlocal_certs\n\tskip_install_trust\n}\nimport /etc/caddy/Caddyfile\n")
	m.run("mkdir /etc/systemd/system/caddy.service.d")
	m.write("/etc/systemd/system/caddy.service.d/e2e.conf",
		"[Service]\nExecStart=\nExecStart=/usr/bin/caddy run --config /etc/caddy/e2e.caddyfile "+
			"--adapter caddyfile\n")
}

// renewCertificate makes one and runs the hooks, as certbot does.
func (m *machine) renewCertificate() {
	m.t.Helper()
	m.run(`cd /etc/letsencrypt/live/pets.example.com &&
		openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=pets.example.com \
			-addext subjectAltName=DNS:pets.example.com \
			-keyout privkey.pem -out fullchain.pem 2>/dev/null &&
		cd - >/dev/null`)
	m.run(`(set -e
		shopt -s nullglob
		for HOOK in /etc/letsencrypt/renewal-hooks/deploy/*; do "$HOOK"; done)`)
}

// checkServed waits for a certificate to be served at an address.
func (m *machine) checkServed(address, certificate string) {
	m.t.Helper()
	m.run(within(fmt.Sprintf(
		`[ "$(openssl s_client -connect %s -servername pets.example.com </dev/null 2>/dev/null |
		openssl x509 -noout -fingerprint)" = "$(openssl x509 -noout -fingerprint -in %s)" ]`,
		address, certificate)))
}

func (m *machine) checkCaddy() { m.checkProxy("", caddyRoot) }

// checkProxy looks whether the service is all there behind a proxy, at a path
// and with a certificate.
func (m *machine) checkProxy(prefix, trusted string) {
	m.t.Helper()
	m.waitUntilReady()
	base := "https://pets.example.com" + prefix + "/v1"
	m.run(within("curl -s -o /dev/null --cacert " + trusted + " " + base + "/pets"))
	key := "Authorization: Bearer " + m.newKey()
	for _, protocol := range []string{"--http1.1", "--http2"} {
		m.checkCalls(base, key, "--cacert", trusted, protocol)
	}
	m.checkAddresses(base, key, "--cacert", trusted)
}

var (
	locationHeader = regexp.MustCompile(`(?mi)^location: (\S+)\r?$`)
	nextHeader     = regexp.MustCompile(`(?mi)^link: <(\S+)>; rel="next"\r?$`)
	leftHeader     = regexp.MustCompile(`(?mi)^x-ratelimit-remaining: (\d+)\r?$`)
)

// find is the value of a header, or "" if there is none.
func find(header *regexp.Regexp, head string) string {
	if value := header.FindStringSubmatch(head); value != nil {
		return value[1]
	}
	return ""
}

// checkCalls calls every operation.
func (m *machine) checkCalls(base, key string, flags ...string) {
	m.t.Helper()
	created, _ := m.curl(201, key, base+"/pets", append(flags, "-d", rex)...)
	location := find(locationHeader, created)
	if !strings.HasPrefix(location, base+"/pets/") {
		m.t.Errorf("the animal is at %q, expected below %s", location, base)
	}
	if version := "HTTP/" + strings.TrimPrefix(flags[len(flags)-1],
		"--http"); !strings.HasPrefix(created, version+" ") {
		m.t.Errorf("the answer is not in %s: %s", version, created)
	}
	m.curl(200, key, location, flags...)
	list, _ := m.curl(200, key, base+"/pets?limit=1", flags...)
	next := find(nextHeader, list)
	if !strings.HasPrefix(next, base+"/pets?limit=1&after=") || find(leftHeader, list) == "" {
		m.t.Errorf("the first page of several has no next one at %s, or no limits:\n%s", base, list)
	}
	if _, body := m.curl(200, key, next, flags...); !strings.HasPrefix(body, `[{"id":`) {
		m.t.Errorf("the next page is %s", body)
	}
	m.checkLarge(200_000, base, key, flags...)
	m.curl(200, key, base+"/pets", flags...)
}

// checkLarge sends a body that is too large, and expects the service's own refusal.
func (m *machine) checkLarge(size int, base, key string, flags ...string) {
	m.t.Helper()
	m.run(fmt.Sprintf("head -c %d /dev/zero >/tmp/large", size))
	if _, body := m.curl(413, key, base+"/pets", append(flags, "--data-binary",
		"@/tmp/large")...); !strings.Contains(body, `"code":"body_too_large"`) {
		m.t.Errorf("a body of %d bytes is refused with %q", size, body)
	}
}

// checkAddresses looks whether the caller's address is what is counted, and not
// what the caller says it is.
func (m *machine) checkAddresses(base, key string, flags ...string) {
	m.t.Helper()
	m.sources += 2
	here, there := fmt.Sprint("127.0.1.", m.sources), fmt.Sprint("127.0.1.", m.sources+1)
	from := func(address string) []string { return append(flags, "--interface", address) }
	for _, said := range []string{here, there, there + ", 192.0.2.1", `"` + there + `"`} {
		m.curl(401, "X-Forwarded-For: "+said, base+"/pets", from(here)...)
	}
	m.curl(200, key, base+"/pets", from(here)...)
	if head, _ := m.curl(401, "X-Forwarded-For: 192.0.2.1", base+"/pets",
		from(here)...); find(leftHeader, head) != "55" {
		m.t.Errorf("after five calls without a key from one address, 55 should be left:\n%s", head)
	}
	if head, _ := m.curl(401, "X-Forwarded-For: "+here, base+"/pets",
		from(there)...); find(leftHeader, head) != "59" {
		m.t.Errorf("after a first call without a key from an address, 59 should be left:\n%s", head)
	}
}

// checkNginx looks besides whether headers that HTTP spells anyhow arrive as the
// specification spells them, and whether nginx's own limit on bodies is off.
func (m *machine) checkNginx() {
	m.t.Helper()
	m.checkProxy("", certificate)
	const base = "https://pets.example.com/v1"
	key := "Authorization: Bearer " + m.newKey()
	head, _ := m.curl(200, key, base+"/pets", "--http1.1", "--cacert", certificate)
	for _, header := range []string{"X-RateLimit-Limit: ", "X-RateLimit-Remaining: ",
		"X-RateLimit-Reset: ", "RateLimit: ", "RateLimit-Policy: "} {
		if !strings.Contains(head, "\n"+header) {
			m.t.Errorf("%q does not arrive:\n%s", header, head)
		}
	}
	m.checkLarge(2_000_000, base, key, "--cacert", certificate)
	m.renewCertificate()
	m.checkServed("127.0.0.1:443", certificate)

	m.run("systemctl stop petstore.socket petstore")
	m.curl(502, key, base+"/pets?limit=1", "--cacert", certificate)
	m.run("systemctl start petstore.socket petstore")
	if log := m.run("grep -r pets /var/log/nginx || true"); log != "" {
		m.t.Errorf("nginx logs paths:\n%s", log)
	}
}

// checkPrefix looks besides what a probe sees outside the prefix, and while the service is down.
func (m *machine) checkPrefix() {
	m.t.Helper()
	m.checkProxy("/shop", caddyRoot)
	probe := func(status int, path string) (body string) {
		m.t.Helper()
		_, body = m.curl(status, "Accept: */*", "https://pets.example.com"+path, "--cacert",
			caddyRoot)
		return body
	}
	if body := probe(200, "/shop/readyz"); strings.TrimSpace(body) != "ok" {
		m.t.Errorf("a probe gets %q", body)
	}
	probe(404, "/readyz")
	m.run("systemctl stop petstore.socket petstore")
	probe(404, "/readyz")
	probe(502, "/shop/readyz")
	m.run("systemctl start petstore.socket petstore")
}

// dockerStandIn does what Docker would with the documents' Dockerfile: the
// commands of the first stage, the files of the second as an empty root
// directory, and the program in it as its user and with its environment only.
// What it does not know is an error.
const dockerStandIn = `docker() {
	local image=/var/lib/e2e-image
	case "$*" in
	"build -t petstore -f docs/deploy/Dockerfile .")
		local root=/ folder word rest user=0:0
		mkdir $image
		>$image.env
		while read -r word rest; do
			case "$word $rest" in
			"# "*) ;;
			"FROM golang:1.26 AS build") ;;
			"FROM scratch") root=$image ;;
			"WORKDIR "*) folder=$rest && mkdir "$folder" ;;
			"COPY . .") tar -c -X .dockerignore . | tar -x -C "$folder" ;;
			"RUN "*) (cd "$folder" && sh -c "$rest") || return ;;
			"COPY --from=build --chown="*)
				set -- $rest
				cp -r "$3" "$root$4" && chown -R "${2#--chown=}" "$root$4"
				;;
			"COPY --from=build "*)
				set -- $rest
				mkdir -p "$(dirname "$root$3.")" && cp -r "$2" "$root$3"
				;;
			"USER "*) user=$rest ;;
			"ENV "*) echo "$rest" >>$image.env ;;
			"VOLUME /data" | "EXPOSE 8080" | " ") ;;
			"ENTRYPOINT "*) echo "$rest" | tr -d '[]",' >$image.entrypoint ;;
			*) echo "not understood: $word $rest" && return 1 ;;
			esac || return
		done <docs/deploy/Dockerfile
		echo "$user" >$image.user
		;;
	"run -d --name petstore --restart unless-stopped -v petstore:/data -p 127.0.0.1:8080:8080"\
" -p 127.0.0.1:6060:6060 -e "*" petstore")
		printf '%s\n' "${14}" "${16}" >>$image.env
		docker start petstore
		;;
	"start petstore")
		docker exec petstore $(cat $image.entrypoint) >$image.log 2>&1 &
		echo $! >$image.pid
		;;
	"stop petstore") pkill -P $(cat $image.pid) && wait $(cat $image.pid) ;;
	"run --rm -v petstore:/data petstore "*)
		docker exec petstore $(cat $image.entrypoint) "${@:6}"
		;;
	"cp petstore:/data/$COPY .") cp $image/data/$COPY . ;;
	"exec petstore "*)
		shift 2
		(cd / && exec env -i $(cat $image.env) \
			/usr/sbin/chroot --userspec=$(cat $image.user) $image "$@")
		;;
	*) echo "not understood: docker $*" && return 1 ;;
	esac
}`

// checkContainer looks whether the program does everything in its empty root.
func (m *machine) checkContainer() {
	m.t.Helper()
	if files := m.run("find /var/lib/e2e-image -maxdepth 1"); len(strings.Fields(files)) != 4 {
		m.t.Errorf("the image should hold the program, its data and the authorities only: %s",
			files)
	}
	m.run(within("curl -s -o /dev/null 127.0.0.1:8080/openapi.json"))
	key := strings.TrimSpace(m.run("docker exec petstore /petstore key create"))
	m.run(untilTaken(key))
	m.curl(201, "Authorization: Bearer "+key, "http://127.0.0.1:8080/v1/pets", "-d", rex)
	if keys := m.run("docker exec petstore /petstore key list"); !strings.Contains(keys,
		"shop front") || len(strings.Split(keys, "\n")) != 4 {
		m.t.Errorf("there should be the two keys that were made by command:\n%s", keys)
	}
	m.run("test -s $COPY && curl -fsS -o /dev/null 127.0.0.1:6060/readyz")
	// An import needs a folder for a temporary file, and has none but that of its data.
	m.write("/var/lib/e2e-image/data/pets.jsonl", rex+"\n")
	m.run("docker exec petstore /petstore pet import /data/pets.jsonl")
	m.run("rm /var/lib/e2e-image/data/pets.jsonl")
	m.run("cd /tmp && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=own -addext " +
		"subjectAltName=IP:127.0.0.1 -keyout own.key -out own.crt 2>/dev/null && cd - >/dev/null")
	m.run("(setsid openssl s_server -accept 4001 -key /tmp/own.key -cert /tmp/own.crt -www " +
		">/dev/null 2>&1 &)")
	m.run(within("ss -Hltn | grep -q ':4001 '"))
	const ask = "docker exec petstore /petstore key list -db https://127.0.0.1:4001 2>&1 || true"
	if told := m.run(ask); !strings.Contains(told, "unknown authority") {
		m.t.Errorf("of a node with a certificate of nobody's it says %q", told)
	}
	own := findAll(`-v \$PWD/ca\.crt:(\S+):ro`, readFile(m.t, "../docs/operating.md"))
	m.run("cp /tmp/own.crt /var/lib/e2e-image" + strings.Join(own, "")) // as -v does
	if told := m.run(ask); strings.Contains(told, "x509") || strings.Contains(told, "refused") {
		m.t.Errorf("with its authority it says %q", told)
	}
	if strange := m.run("find /var/lib/e2e-image/data ! -user 65532"); strange != "" {
		m.t.Errorf("in the volume, these files are not the user's: %s", strange)
	}
	if version := m.run("docker exec petstore /petstore version"); strings.Contains(version,
		"dirty") || !strings.Contains(version, m.run("git rev-parse HEAD")[:12]) {
		m.t.Errorf("built from a clone, it says %q", version)
	}
}

// checkContainerRestored looks whether the service runs on the restored database, which has the
// key that was made before the copy, and not the pet that was added after it.
func (m *machine) checkContainerRestored() {
	m.t.Helper()
	m.waitUntilReady()
	keys := m.run("docker exec petstore /petstore key list")
	pets := m.run("docker exec petstore /petstore pet export")
	if !strings.Contains(keys, "shop front") || pets != "" {
		m.t.Errorf("the restored database has these keys and pets:\n%s%s", keys, pets)
	}
}
