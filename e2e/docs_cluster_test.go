package e2e

// Proven here alone: docs/cluster.md works from top to bottom on three machines, and its script
// makes folders that are whole.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestAClusterRunsAsDocumented follows that document from top to bottom, as root, on
// three machines in one network: a store that has been a file grows into a cluster of
// nodes, services and balancers under Debian's systemd, which is restored, loses
// machines, is upgraded, and becomes a file again. Where the line above a block says
// "each machine", it is run on all of them, otherwise on the first one. Before and
// after some steps the test looks whether what is promised is so.
func TestAClusterRunsAsDocumented(t *testing.T) {
	t.Parallel()
	needs(t, "haproxy", "useradd", "gcc", "prometheus-blackbox-exporter")
	c := bootCluster(t)
	c.serveFile()
	steps := []*step{
		{section: "Set it up", line: "systemctl disable --now petstore.socket", before: c.callFile,
			after: c.checkMoved},
		{section: "Set it up", line: "for HOST in 10.0.0.1 10.0.0.2 10.0.0.3; do curl",
			after: c.checkNodes},
		{section: "Set it up", line: "curl -s -o /dev/null", after: c.checkServices},
		{section: "Backups", line: "systemctl start petstore-backup", before: c.leaveBackups,
			after: c.checkBackup},
		{section: "Backups", line: "systemctl start petstore", after: c.checkRestored},
		{section: "Two leaders", line: "for HOST in", before: c.plantAnotherRow,
			after: func() { c.wantCopies(2) }},
		{section: "A lost machine", line: "curl -K", before: c.loseOne},
		{section: "A lost machine", line: "scp -qr cluster/10.0.0.2", after: func() {
			c.replace(1)
			c.whileServicesAreStopped(func() { c.wantCopies(1) })
			c.checkPets()
		}},
		{section: "A lost majority", line: "systemctl stop petstore rqlite", before: c.loseTwo},
		{section: "A lost majority", line: "scp -qr cluster/10.0.0.3",
			after: func() { c.setUp(true, 1, 2) }},
		{section: "A lost majority", line: "petstore restore",
			after: func() { c.setUp(false, 1, 2); c.checkRestored() }},
		{section: "New certificates", line: "install -m 640 -g rqlite", before: c.keepCertificates,
			after: c.checkCertificates},
		{section: "Upgrades", line: "systemctl restart petstore", after: c.checkPets},
		{section: "Back to one file", line: "petstore backup", before: c.callFile,
			after: c.checkFile},
	}
	for _, b := range c.blocks {
		var now *step
		if i := slices.IndexFunc(steps, func(s *step) bool { return s.isOf(b) }); i >= 0 {
			now = steps[i]
			steps = slices.Delete(steps, i, i+1)
		}
		if now != nil && now.before != nil {
			now.before()
		}
		c.follow(b)
		if now != nil && now.after != nil {
			now.after()
		}
	}
	for _, s := range steps {
		t.Errorf("under %q the document no longer has the command %q", s.section, s.line)
	}
}

// step is a block of the document around which something is checked.
type step struct {
	section, line string // of one of its commands, the beginning
	before, after func()
}

func (s *step) isOf(b *block) bool {
	return b.section == s.section && slices.ContainsFunc(b.commands(), func(c command) bool {
		return strings.HasPrefix(c.line, s.line)
	})
}

// threeMachines are those of the document.
type threeMachines struct {
	t      *testing.T
	all    []*machine
	blocks []*block
	wire   string // a folder that all machines share, for scp

	key string            // a key of the file that was there first
	ids map[string]string // of the pets that were confirmed, by name
}

func hostOf(i int) string { return fmt.Sprint("10.0.0.", i+1) }

// scpStandIn copies to another machine's /root as far as it can, see receive.
const scpStandIn = `scp() {
	local to=${@: -1} files=("${@:2:$#-2}")
	local host=${to%%:*} path=${to#*:}
	case $path in
	*/) mkdir -p "$WIRE/$host/$path" && cp -r "${files[@]}" "$WIRE/$host/$path" ;;
	*) mkdir -p "$WIRE/$host" && cp -r "${files[@]}" "$WIRE/$host/$path" ;;
	esac
}`

// bootCluster boots three machines and joins their networks.
func bootCluster(t *testing.T) *threeMachines {
	t.Helper()
	c := &threeMachines{t: t, wire: t.TempDir(), ids: map[string]string{}}
	for _, d := range readDocuments(t) {
		if d.path == machines {
			c.blocks = d.blocks
		}
	}
	repository, rqlite := snapshot(t), rqliteReleases(t)
	for i := range 3 {
		m := bootMachine(t, repository, rqlite, c.wire, filepath.Dir(binary))
		m.values["<this repository>"] = repository
		m.values["https://github.com/rqlite/rqlite/releases/download"] = "file://" + rqlite
		c.all = append(c.all, m)
		card := "lan"
		if i == 0 {
			m.run("ip link add lan type bridge")
		} else {
			card = "eth0"
			link := fmt.Sprint("link", i)
			runs(t, exec.Command("ip", "link", "add", link, "netns", c.all[0].pid, "type", "veth",
				"peer", "name", card, "netns", m.pid))
			c.all[0].run("ip link set " + link + " master lan up")
		}
		m.run(fmt.Sprintf("ip address add %s/24 dev %s && ip link set %[2]s up", hostOf(i), card))
		m.run("cd /root && export WIRE=" + c.wire)
		m.run(scpStandIn)
		m.run("systemctl start systemd-journald-dev-log.socket") // for HAProxy
		m.run("mkdir -p /etc/letsencrypt/{live/pets.example.com,renewal-hooks/deploy}")
		m.renewCertificate()
		m.run("cp " + certificate + " /usr/local/share/ca-certificates/e2e.crt")
		// No machine needs other authorities, and to hash them all takes seconds each time.
		m.run(">/etc/ca-certificates.conf && find /etc/ssl/certs -type l -delete")
	}
	return c
}

// rqliteReleases stands for those of GitHub: rqlited, packed as there.
func rqliteReleases(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	tool(t, "bash", "-ec", `cd "$1"; mkdir "$3" "$4"; cp "$2" "$3/rqlited"
		tar czf "$4/$3.tar.gz" "$3"`,
		"bash", folder, installRqlited(t), "rqlite-"+rqliteVersion+"-linux-amd64", rqliteVersion)
	return folder
}

// rqliteVersion is that of the document, and of .ci/rqlited.
const rqliteVersion = "v8.43.4"

// serveFile makes the first machine one that serves a file.
func (c *threeMachines) serveFile() {
	c.t.Helper()
	m := c.all[0]
	m.run("install " + binary + " /usr/local/bin/ && git clone -q '<this repository>' before")
	m.run("cp before/docs/deploy/petstore.env /etc/ && cp " +
		"before/docs/deploy/petstore.{service,socket} /etc/systemd/system/")
	m.run("rm -r before && systemctl daemon-reload")
	m.run("install -d -m 700 /var/lib/petstore")
	c.key = strings.TrimSpace(m.run("petstore key create -plan business -db " +
		"/var/lib/petstore/petstore.db"))
	m.run("systemctl enable --now petstore.socket petstore")
	m.waitUntilReady()
	for range 3 {
		c.create(m, "http://127.0.0.1:8080/v1")
	}
}

// callFile calls the service of the file without a pause, while it moves.
func (c *threeMachines) callFile() {
	c.t.Helper()
	c.all[0].run("rm -f /tmp/moved")
	c.all[0].callAllTheTime("/tmp/moved")
}

// checkMoved looks whether those calls have not started it again.
func (c *threeMachines) checkMoved() {
	c.t.Helper()
	c.all[0].run("! systemctl is-active --quiet petstore petstore.socket && touch /tmp/moved && " +
		"wait $!")
}

// create adds a pet with a name of its own.
func (c *threeMachines) create(m *machine, base string) {
	c.t.Helper()
	name := fmt.Sprint("animal ", len(c.ids))
	_, body := m.curl(201, "Authorization: Bearer "+c.key, base+"/pets", "-d", animalJSON(name))
	c.ids[name] = regexp.MustCompile(`"id":(\d+)`).FindString(body)
}

// follow runs a block where the line above it says.
func (c *threeMachines) follow(b *block) {
	c.t.Helper()
	machines := c.all[:1]
	if strings.Contains(b.above, "each machine") {
		machines = c.all
	}
	for i, m := range machines {
		c.followOn(i, m, b)
	}
}

// followOn runs a block on one machine, which first has what was copied to it. What
// no operator is fast enough for, systemd forgets.
func (c *threeMachines) followOn(i int, m *machine, b *block) {
	c.t.Helper()
	inbox := filepath.Join(c.wire, hostOf(i))
	m.run(fmt.Sprintf("! [ -d %s ] || { cp -r %[1]s/. /root/ && rm -r %[1]s; }", inbox))
	m.run("systemctl reset-failed petstore rqlite haproxy 2>/dev/null || true")
	m.follow(b)
}

// plantAnotherRow has the copy of the second node hold what no other does.
func (c *threeMachines) plantAnotherRow() {
	c.t.Helper()
	c.wantCopies(1)
	c.all[1].run(`python3 -c 'import sqlite3
db = sqlite3.connect("/var/lib/rqlite/db.sqlite", timeout=10)
db.execute("INSERT INTO counters VALUES (?, 1)", ("planted",))
db.commit()'`)
}

// whileServicesAreStopped stops them for as long as nodes are compared, as the document does: else
// what one of them stores may come between two nodes, and each then holds something else.
func (c *threeMachines) whileServicesAreStopped(happens func()) {
	c.t.Helper()
	for _, m := range c.all {
		m.run("systemctl stop petstore")
	}
	happens()
	for _, m := range c.all {
		m.run("systemctl start petstore")
	}
}

// wantCopies wants the nodes to hold so many different copies, as the document compares them: if
// they are two, the second node has the other one.
func (c *threeMachines) wantCopies(number int) {
	c.t.Helper()
	for _, b := range c.blocks {
		compares := &step{section: "Two leaders", line: "for HOST in"}
		if !compares.isOf(b) {
			continue
		}
		eventually(c.t, time.Minute, func() error { // a node may be late
			c.follow(b)
			digests := strings.Fields(c.all[0].run("sha256sum </root/10.0.0.1.json; " +
				"sha256sum </root/10.0.0.2.json; sha256sum </root/10.0.0.3.json"))
			isOdd := digests[2] != digests[0]
			if digests[0] != digests[4] || isOdd != (number == 2) {
				return fmt.Errorf("the nodes hold %s", digests)
			}
			return nil
		})
	}
	held := c.all[0].run("cat /root/10.0.0.1.json")
	if strings.Contains(held, `"error":`) || !strings.Contains(held, `"animal 0"`) {
		c.t.Errorf("what is compared is %s", held)
	}
}

const public = "https://pets.example.com/v1"

// checkNodes looks whether nodes know each other by certificates only, and users by
// their passwords, who may do no more than they must.
func (c *threeMachines) checkNodes() {
	c.t.Helper()
	m := c.all[0]
	const (
		status = "curl -s -o /dev/null -w '%{http_code}' "
		query  = " https://10.0.0.2:4001/db/query?q=SELECT+1"
	)
	for command, want := range map[string]string{
		status +
			"http://10.0.0.2:4001/status": "400",
		status +
			"https://10.0.0.2:4001/status": "401",
		status + "-u petstore:$(cat cluster/petstore.password)" +
			query: "200",
		status + "-u node:$(cat cluster/node.password)" +
			query: "401",
		status + "-u petstore:$(cat cluster/petstore.password) -X DELETE " +
			"https://10.0.0.2:4001/remove": "401",
	} {
		if got := m.run("cd /root && " + command + "; cd - >/dev/null"); got != want {
			c.t.Errorf("%s prints %s, expected %s", command, got, want)
		}
	}
	alert := m.run("sleep 1 | openssl s_client -connect 10.0.0.2:4002 2>&1 || true")
	if !strings.Contains(alert, "certificate required") {
		c.t.Errorf("a node listens to another without a certificate:\n%s", alert)
	}
	m.run("systemd-analyze security --offline=true --threshold=20 " +
		"/etc/systemd/system/rqlite.service")
	if user := m.run("stat --format %U /var/lib/rqlite"); user != "rqlite\n" {
		c.t.Errorf("the data belongs to %s", user)
	}
}

// newKey makes a key and waits until it opens the store through every balancer.
func (c *threeMachines) newKey() string {
	c.t.Helper()
	key := strings.TrimSpace(c.all[0].run("petstore key create -plan business"))
	for _, m := range c.all {
		m.run(within("curl -fs -o /dev/null -H 'Authorization: Bearer " + key + "' " + public +
			"/pets"))
	}
	return key
}

// checkServices looks whether every balancer brings a key to the same service, however its
// header is spelt, which counts exactly, and callers without one under their address.
func (c *threeMachines) checkServices() {
	c.t.Helper()
	c.all[0].run("cd /etc/systemd/system && ! systemd-analyze verify petstore.service " +
		"rqlite.service 2>&1 | grep . && cd /root/node")
	used := map[int]bool{}
	for range 6 {
		key := c.newKey()
		before := c.served()
		left := 0
		for i := range 6 {
			spelling := []string{"Bearer ", "bearer  "}[i%2] // each to every balancer
			head, _ := c.all[i%3].curl(200, "Authorization: "+spelling+key, public+"/pets")
			now, _ := strconv.Atoi(find(leftHeader, head))
			if i > 0 && now != left-1 {
				c.t.Errorf("after %d requests are left, %d are", left, now)
			}
			left = now
		}
		for i, served := range c.served() {
			switch served - before[i] {
			case 6:
				used[i] = true
			case 0:
			default:
				c.t.Errorf("of six requests with one key, service %d got %d", i+1, served-before[i])
			}
		}
	}
	if len(used) < 2 {
		c.t.Errorf("six keys came to the services %v only", used)
	}
	c.all[1].checkAddresses(public, "Authorization: Bearer "+c.key)
	m := c.all[0]
	m.curl(200, "Authorization: Bearer "+c.key, public+"/pets", "--resolve",
		"pets.example.com:443:[::1]")
	if mode := m.run("stat --format %a /etc/haproxy/*.pem"); mode != "600\n" {
		c.t.Errorf("the key of the public certificate has the mode %s", mode)
	}
	m.renewCertificate()
	m.checkServed("127.0.0.1:443", certificate)
	m.run("cp " + certificate +
		" /usr/local/share/ca-certificates/e2e.crt && update-ca-certificates")
	c.checkPets()
}

func (c *threeMachines) keepCertificates() {
	c.t.Helper()
	for _, m := range c.all {
		m.run("cp /etc/rqlite/node.crt /tmp/before.crt")
	}
}

// checkCertificates looks whether all machines serve their new certificates, of which the
// blackbox exporter tells when they end.
func (c *threeMachines) checkCertificates() {
	c.t.Helper()
	c.all[0].run(`printf 'ARGS="%s %s"\n' --web.listen-address=127.0.0.1:9115 \
			--config.file=/etc/prometheus/blackbox.yml >/etc/default/prometheus-blackbox-exporter &&
		systemctl start prometheus-blackbox-exporter`)
	for i, m := range c.all {
		m.run("! cmp -s /etc/rqlite/node.crt /tmp/before.crt")
		for _, port := range []string{":4001", ":4002", ":8080"} {
			m.checkServed(hostOf(i)+port, "/etc/rqlite/node.crt")
		}
		probe := c.all[0].run("curl -sS --retry 30 --retry-connrefused --retry-delay 1 " +
			"'127.0.0.1:9115/probe?module=http_2xx&target=https://" +
			hostOf(i) + ":4001/readyz'")
		if !strings.Contains(probe, "\nprobe_ssl_earliest_cert_expiry 1") ||
			!strings.Contains(probe, "\nprobe_success 1\n") {
			c.t.Errorf("of node %d the exporter says %s", i+1, probe)
		}
	}
	c.checkPets()
}

// served is how many lists each service has served.
func (c *threeMachines) served() (lists []int) {
	c.t.Helper()
	for _, m := range c.all {
		n := m.run(`curl -s 127.0.0.1:6060/metrics |
			sed -n 's/^petstore_requests_total{operation="listPets",status="200"} //p'`)
		served, _ := strconv.Atoi(strings.TrimSpace(n)) // there is none before the first
		lists = append(lists, served)
	}
	return lists
}

// checkPets adds a pet through every balancer, and finds there all that were ever
// confirmed, under their ids.
func (c *threeMachines) checkPets() {
	c.t.Helper()
	for _, m := range c.all {
		m.waitUntilReady()
	}
	for _, m := range c.all {
		m.run(within("curl -fs -o /dev/null https://pets.example.com/readyz"))
		c.create(m, public)
	}
	for _, m := range c.all {
		c.checkList(m, public)
	}
}

func (c *threeMachines) checkList(m *machine, base string) {
	c.t.Helper()
	_, list := m.curl(200, "Authorization: Bearer "+c.key, base+"/pets?limit=100")
	for name, id := range c.ids {
		if !strings.Contains(list, fmt.Sprintf(`{%s,"name":%q,`, id, name)) {
			c.t.Errorf("%s, confirmed with %s, is not in %s", name, id, list)
		}
	}
}

// leaveBackups makes the folder of the copies look as after 20 nights and a crash.
func (c *threeMachines) leaveBackups() {
	c.t.Helper()
	c.all[0].run("for DAY in {10..29}; do touch -d 2020-01-${DAY}T03:00Z " +
		"/var/backups/petstore-202001${DAY}T030000Z.db; done")
	c.all[0].run("touch /var/backups/petstore-20200130T030000Z.db.partial " +
		"/var/backups/petstore-mine.db.partial")
}

// checkBackup looks for the copy, and keeps the pets out of it that come now.
func (c *threeMachines) checkBackup() {
	c.t.Helper()
	m := c.all[0]
	m.run("test -s $(ls -t /var/backups/petstore-2*Z.db | head -n 1) && systemctl is-active " +
		"--quiet petstore-backup.timer")
	if left := m.run("ls /var/backups/petstore-2*"); strings.Count(left, "\n") != 14 ||
		strings.Contains(left, "partial") {
		c.t.Errorf("of the copies these are kept:\n%s", left)
	}
	m.run("rm /var/backups/petstore-mine.db.partial") // which no timer has made
	m.curl(201, "Authorization: Bearer "+c.key, public+"/pets", "-d", animalJSON("not in the copy"))
}

// checkRestored looks whether the restored cluster knows the pets of the copy, and
// gives out no id that another may have.
func (c *threeMachines) checkRestored() {
	c.t.Helper()
	before := len(c.ids)
	c.checkPets()
	if id := c.ids[fmt.Sprint("animal ",
		before)]; !regexp.MustCompile(`:\d\d{6}$`).MatchString(id) {
		c.t.Errorf("the first pet after a restore has %s", id)
	}
	_, list := c.all[0].curl(200, "Authorization: Bearer "+c.key, public+"/pets?limit=100")
	if strings.Contains(list, "not in the copy") {
		c.t.Errorf("a pet that is not in the copy is in %s", list)
	}
}

// lose takes a machine off the network and its disk away.
func (c *threeMachines) lose(i int) {
	c.t.Helper()
	m := c.all[i]
	m.run("cd /root && ip link set eth0 down")
	m.run("systemctl kill --signal=KILL rqlite petstore haproxy; systemctl disable --now rqlite " +
		"petstore haproxy 2>/dev/null")
	m.run("rm -rf node /var/lib/rqlite /etc/rqlite /etc/petstore.env " +
		"/usr/local/share/ca-certificates/petstore-cluster.crt")
	m.run("rm -rf /etc/systemd/system/{rqlite,petstore}* /usr/local/bin/{rqlited,petstore}")
	m.run("userdel rqlite && systemctl daemon-reload")
}

// replace puts an empty machine in the place of a lost one and sets it up.
func (c *threeMachines) replace(lost int) {
	c.t.Helper()
	const nodes = `curl -K /etc/rqlite/rqlite-admin.curl https://10.0.0.1:4001/nodes`
	c.setUp(true, lost)
	c.setUp(false, lost)
	c.all[0].run(within(fmt.Sprintf(`[ $(%s | grep -o '"reachable":true' | wc -l) = 3 ]`, nodes)))
}

// setUp sets up the nodes of machines, or what comes after those, with the blocks that
// are for each machine.
func (c *threeMachines) setUp(nodes bool, machines ...int) {
	c.t.Helper()
	for _, i := range machines {
		c.all[i].run("ip link set eth0 up")
		for _, b := range c.blocks {
			ofNode := slices.ContainsFunc(b.commands(),
				func(c command) bool { return c.line == "systemctl enable --now rqlite" })
			if b.section == "Set it up" && strings.Contains(b.above, "each machine") &&
				ofNode == nodes {
				c.followOn(i, c.all[i], b)
			}
		}
	}
}

// loseOne loses a machine, after which all goes on through the others.
func (c *threeMachines) loseOne() {
	c.t.Helper()
	c.lose(1)
	for _, m := range []*machine{c.all[0], c.all[2]} {
		create := "curl -fs -o /dev/null -H 'Authorization: Bearer " + c.key + "' --json '" + rex +
			"' " + public + "/pets"
		m.run(within(create)) // while another leads, and is found
		c.create(m, public)
		c.checkList(m, public)
	}
}

// loseTwo loses the majority: what the last service remembers is still served, and a
// create is refused.
func (c *threeMachines) loseTwo() {
	c.t.Helper()
	m, key := c.all[0], "Authorization: Bearer "+c.key
	m.curl(200, key, "https://10.0.0.1:8080/v1/pets?limit=1") // which it then remembers
	c.lose(1)
	c.lose(2)
	m.run(within("curl -fs -o /dev/null -H '" + key + "' '" + public + "/pets?limit=1'"))
	for range 5 {
		m.curl(200, key, public+"/pets?limit=1")
	}
	if _, body := m.curl(503, key, public+"/pets", "-d", rex); !strings.Contains(body,
		`"code":"unavailable"`) {
		c.t.Errorf("without a majority, a create gets %s", body)
	}
}

// checkFile looks whether the file has all pets and keys of the cluster.
func (c *threeMachines) checkFile() {
	c.t.Helper()
	m := c.all[0]
	m.waitUntilReady()
	m.run("systemctl is-active petstore.socket && touch /tmp/moved && wait $!")
	c.create(m, "http://127.0.0.1:8080/v1")
	c.checkList(m, "http://127.0.0.1:8080/v1")
	m.checkUnheard()
}

// TestTheClusterScriptMakesWholeFoldersOnly runs it again after openssl has failed,
// and for another machine. What is there stays, and certificates name their machines.
func TestTheClusterScriptMakesWholeFoldersOnly(t *testing.T) {
	folder := t.TempDir()
	script, err := filepath.Abs("../docs/deploy/cluster.sh")
	noError(t, err)
	broken := filepath.Join(folder, "broken")
	noError(t, os.Mkdir(broken, 0o700))
	commands := filepath.Join(folder, "commands")
	run := func(search string, arguments ...string) (out string, err error) {
		watched := []string{"-f", "-e", "trace=execve", "-s", "10000", "-o", commands, "sh", script}
		cmd := exec.Command("strace", append(watched, arguments...)...)
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "PATH="+search+os.Getenv("PATH"))
		text, err := cmd.CombinedOutput()
		return string(text), err
	}
	fail := func(what string, addresses ...string) {
		t.Helper()
		openssl := "#!/bin/sh\ncase $* in *" + what +
			"*) echo half >node.key; echo no luck >&2; exit 1 ;; esac\n" +
			"PATH=${PATH#*:} exec openssl \"$@\"\n"
		noError(t, os.WriteFile(filepath.Join(broken, "openssl"), []byte(openssl),
			0o700)) //nolint:gosec // it is run
		if out, err := run(broken+":", addresses...); err == nil ||
			!strings.Contains(out, "no luck") {
			t.Errorf("without openssl for %s: %v, %s", what, err, out)
		}
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(folder, "cluster", name))
		noError(t, err)
		return string(text)
	}
	succeed := func(addresses ...string) {
		t.Helper()
		if out, err := run("", addresses...); err != nil || out != "" {
			t.Fatalf("cluster.sh %s: %v, %s", addresses, err, out)
		}
		for _, user := range []string{"petstore", "node", "admin"} {
			if password := read(user + ".password"); strings.Contains(readFile(t, commands),
				strings.TrimSpace(password)) {
				t.Errorf("every user could see the password of %s in a command line", user)
			}
		}
		for _, address := range addresses {
			tool(t, "openssl", "verify", "-CAfile", filepath.Join(folder, "cluster", "ca.crt"),
				"-verify_ip", address,
				filepath.Join(folder, "cluster", address, "node.crt"))
			if settings := read(address + "/rqlite.env"); !strings.Contains(settings,
				"HERE="+address+"\n") {
				t.Errorf("%s has the settings %s", address, settings)
			}
		}
	}
	fail("store", "10.0.0.1") // the authority
	fail("rand", "10.0.0.1")
	fail("10.0.0.2", "10.0.0.1", "10.0.0.2")
	if _, err := os.Stat(filepath.Join(folder, "cluster", "10.0.0.2", "node.crt")); err == nil {
		t.Error("a folder that is half made has a certificate, and would stay so")
	}
	before := read("10.0.0.1/node.crt") + read("10.0.0.1/petstore-cluster.env")
	succeed("10.0.0.1", "10.0.0.2")
	succeed("10.0.0.4")
	if read("10.0.0.1/node.crt")+read("10.0.0.1/petstore-cluster.env") != before {
		t.Error("what was there has not stayed")
	}
}
