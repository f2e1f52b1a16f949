package e2e

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A cluster is real rqlite on this machine, each node in a network namespace of
// its own, so that the network between two of them can really be cut: packets then
// vanish without a word, as behind a broken switch. The nodes use rqlite's
// defaults, as those of operators do:
//
//	-raft-timeout               1s     followers without a heartbeat for so long call an election
//	-raft-election-timeout      1s     candidates without a majority for so long begin another
//	-raft-leader-lease-timeout  500ms  leaders without a majority for so long step down
//
// Shorter ones would make elections faster, and more frequent on a busy machine.
type cluster struct {
	t        *testing.T
	network  string // the first three bytes of its addresses, with a dot
	bridge   string // joins the nodes, and the services, which are outside of all namespaces
	nodes    []*rqliteNode
	security *security // nil: no certificates and no passwords
	client   *http.Client
	program  string // of its services; empty for the one under test
	watching *watch // nil: nobody looks
}

// note logs what happens to the cluster, with the time.
func (c *cluster) note(format string, args ...any) {
	c.t.Helper()
	c.t.Logf("%s "+format, append([]any{stamp()}, args...)...)
	if c.watching != nil {
		c.watching.note(format, args...)
	}
}

type rqliteNode struct {
	address   string // without a port
	relayed   string // the address that services and other nodes know; empty for its own
	namespace string
	folder    string
	cmd       *exec.Cmd // nil before the first start
	log       *logBuffer
}

const (
	clusterSize = 3 // one may fail

	// Ports of every node.
	rqlitePort = "4001"
	raftPort   = "4002"
)

// services is what cut takes for the number of a node, to mean all services.
const services = -1

// startCluster starts three rqlite nodes, which are killed when the test ends, and
// returns when all of them know their leader. An option is secured.
func startCluster(t *testing.T, options ...func(*cluster)) *cluster {
	t.Helper()
	installRqlited(t)
	c := &cluster{t: t, client: &http.Client{Timeout: 2 * time.Second}}
	c.makeNetwork()
	for i := range clusterSize {
		c.nodes = append(c.nodes, c.plug(i+1))
	}
	for _, option := range options {
		option(c)
	}
	t.Cleanup(func() {
		for i, n := range c.nodes {
			if c.runs(i) {
				kill(t, n.cmd)
			}
			if t.Failed() {
				t.Logf("node %d:\n%s", i, tail(n.log.String()))
			}
		}
	})
	for i := range clusterSize {
		c.start(i)
	}
	for i := range clusterSize {
		c.awaitReady(i)
	}
	return c
}

// rqlited is the program of a node. Building it takes longer than most tests.
var rqlited = sync.OnceValues(func() (program string, err error) {
	if program = os.Getenv("RQLITED"); program != "" {
		return program, nil // of another version
	}
	program = filepath.Join(filepath.Dir(binary), "rqlited")
	out, err := exec.Command("../.ci/rqlited", program).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf(".ci/rqlited: %w\n%s", err, out)
	}
	return program, nil
})

func installRqlited(t *testing.T) (program string) {
	t.Helper()
	program, err := rqlited()
	noError(t, err)
	return program
}

// makeNetwork makes a bridge, to which machines are plugged.
func (c *cluster) makeNetwork() {
	c.t.Helper()
	if os.Geteuid() != 0 {
		c.t.Fatal("only root can make network namespaces")
	}
	for tries := 0; ; tries++ { // other tests may run beside this one
		n := rand.IntN(512)
		// RFC 2544: for tests
		c.bridge, c.network = fmt.Sprint("pets", n), fmt.Sprintf("198.%d.%d.", 18+n/256, n%256)
		out, err := exec.Command("ip", "link", "add", c.bridge, "type", "bridge").CombinedOutput()
		if err == nil {
			break
		}
		if tries == 20 {
			c.t.Fatalf("no bridge can be made: %v\n%s", err, out)
		}
	}
	c.t.Cleanup(func() { c.ip("link del " + c.bridge) })
	c.ip("address add "+c.network+"254/24 dev "+c.bridge, "link set "+c.bridge+" up")
}

// plug makes a machine, which is a namespace that hangs on the bridge.
func (c *cluster) plug(number int) *rqliteNode {
	c.t.Helper()
	namespace, port := fmt.Sprint(c.bridge, "-", number), fmt.Sprint(c.bridge, "n", number)
	address := fmt.Sprint(c.network, number)
	c.ip("netns add " + namespace)
	c.t.Cleanup(func() { c.ip("link del "+port, "netns del "+namespace) })
	c.ip("link add "+port+" type veth peer name eth0 netns "+namespace,
		"link set "+port+" master "+c.bridge+" up")
	c.ipInside(namespace, "address add "+address+"/24 dev eth0", "link set eth0 up",
		"link set lo up")
	return &rqliteNode{
		address: address, namespace: namespace, log: &logBuffer{},
		folder: filepath.Join(c.t.TempDir(), "node"),
	}
}

// ip runs commands of iproute2's ip.
func (c *cluster) ip(commands ...string) {
	c.t.Helper()
	c.ipInside("", commands...)
}

func (c *cluster) ipInside(namespace string, commands ...string) {
	c.t.Helper()
	ip := exec.Command("ip", "-batch", "-")
	if namespace != "" {
		ip = exec.Command("ip", "-netns", namespace, "-batch", "-")
	}
	ip.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := ip.CombinedOutput(); err != nil {
		c.t.Errorf("ip %s: %v\n%s", commands, err, out)
	}
}

// start starts a node on its folder.
func (c *cluster) start(i int) {
	c.t.Helper()
	n := c.nodes[i]
	var peers []string
	for _, other := range c.nodes {
		peers = append(peers, other.known()+":"+raftPort)
	}
	args := []string{"netns", "exec", n.namespace, installRqlited(c.t),
		"-node-id", n.namespace, // none is ever the name of another machine
		"-http-addr", n.address + ":" + rqlitePort, "-raft-addr", n.address + ":" + raftPort,
		"-http-adv-addr", n.known() + ":" + rqlitePort,
		"-raft-adv-addr", n.known() + ":" + raftPort,
		"-bootstrap-expect", fmt.Sprint(clusterSize), "-join", strings.Join(peers, ","),
		"-raft-log-level", "INFO"} // tells who has won which election
	if c.security != nil {
		args = append(args, c.security.flags()...)
	}
	// becomes rqlited, under the same process id
	n.cmd = exec.Command("ip", append(args, n.folder)...)
	n.cmd.Stdout, n.cmd.Stderr = stampedLog{n.log}, stampedLog{n.log}
	noError(c.t, n.cmd.Start())
	c.note("node %d is started", i)
}

// known is the address under which services and other nodes know a node.
func (n *rqliteNode) known() string { return cmp.Or(n.relayed, n.address) }

// runs reports whether a node was started and not killed since.
func (c *cluster) runs(i int) bool {
	return c.nodes[i].cmd != nil && c.nodes[i].cmd.ProcessState == nil
}

// kill ends a node without a warning.
func (c *cluster) kill(i int) {
	c.t.Helper()
	c.note("node %d is killed", i)
	kill(c.t, c.nodes[i].cmd)
}

// restart starts a node that was killed, and awaits it.
func (c *cluster) restart(i int) {
	c.t.Helper()
	c.start(i)
	c.awaitReady(i)
}

// pause freezes a node, until resume.
func (c *cluster) pause(i int) {
	c.t.Helper()
	c.note("node %d is frozen", i)
	noError(c.t, c.nodes[i].cmd.Process.Signal(syscall.SIGSTOP))
}

func (c *cluster) resume(i int) {
	c.t.Helper()
	c.note("node %d goes on", i)
	noError(c.t, c.nodes[i].cmd.Process.Signal(syscall.SIGCONT))
}

// end is one end of a wire: what is to be run on the machine there.
func (c *cluster) end(i int) (namespace, device, address string) {
	if i == services {
		return "", c.bridge, c.network + "254"
	}
	return c.nodes[i].namespace, "eth0", c.nodes[i].address
}

// cut cuts the network between two nodes, or between a node and the services,
// until mend. Each is told that the other has a hardware address that nobody
// has, so that what they send is lost.
func (c *cluster) cut(a, b int) {
	c.t.Helper()
	c.note("%s is cut off from %s", machineName(a), machineName(b))
	c.wire(a, b, "neighbour replace %s lladdr 02:00:00:00:00:00 nud permanent dev %s")
}

func (c *cluster) mend(a, b int) {
	c.t.Helper()
	c.wire(a, b, "neighbour del %s dev %s")
	c.note("%s reaches %s again", machineName(a), machineName(b))
}

// machineName names an end of a wire.
func machineName(i int) string {
	if i == services {
		return "every service"
	}
	return fmt.Sprint("node ", i)
}

func (c *cluster) wire(a, b int, command string) {
	c.t.Helper()
	for _, from := range [][2]int{{a, b}, {b, a}} {
		namespace, device, _ := c.end(from[0])
		_, _, address := c.end(from[1])
		c.ipInside(namespace, fmt.Sprintf(command, address, device))
	}
}

// cutOff cuts a node off from all other nodes, but not from the services.
func (c *cluster) cutOff(i int) { c.withOthers(i, c.cut) }

// mendOff undoes cutOff.
func (c *cluster) mendOff(i int) { c.withOthers(i, c.mend) }

func (c *cluster) withOthers(i int, do func(a, b int)) {
	c.t.Helper()
	for other := range c.nodes {
		if other != i {
			do(i, other)
		}
	}
}

// addresses is what -db takes, with the password in it if there is one.
func (c *cluster) addresses() string {
	var all []string
	for i, n := range c.nodes {
		all = append(all, strings.Replace(c.url(i), n.address, n.known(), 1))
	}
	return strings.Join(all, ",")
}

// url is the address of a node's HTTP API.
func (c *cluster) url(i int) string {
	scheme, user := "http://", ""
	if c.security != nil {
		scheme, user = "https://", rqliteUser+":"+rqlitePassword+"@"
	}
	return scheme + user + c.nodes[i].address + ":" + rqlitePort
}

// ask is a request to a node; a body makes it a POST.
func (c *cluster) ask(i int, target, body string) (status int, answer string, err error) {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(context.Background(), method, c.url(i)+target,
		strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, string(data), err
}

// awaitReady waits until a node knows the leader, has caught up with it, and has nearly applied
// that, as a leader does first.
func (c *cluster) awaitReady(i int) {
	c.t.Helper()
	eventually(c.t, time.Minute, func() error {
		status, body, err := c.ask(i, "/readyz?sync", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("node %d is not ready: %d %s", i, status, body)
		}
		raft, failure := c.raft(i)
		if err = cmp.Or(err, failure); raft.Pending > 0 {
			err = errors.New("it applies its log")
		}
		return err
	})
}

// leader is the number of the node that leads. Of several that say so, all but the one
// of the latest term were frozen or cut off, and do not know yet that they lead no more.
func (c *cluster) leader() (number int) {
	c.t.Helper()
	eventually(c.t, 20*time.Second, func() error {
		type claim struct{ number, term int }
		claims := make([]claim, len(c.nodes))
		var asking sync.WaitGroup
		for i := range c.nodes {
			if !c.runs(i) {
				continue
			}
			asking.Go(func() {
				if raft, err := c.raft(i); err == nil && raft.State == "Leader" {
					claims[i] = claim{i, raft.Term}
				}
			})
		}
		asking.Wait()
		last := slices.MaxFunc(claims, func(a, b claim) int { return cmp.Compare(a.term, b.term) })
		if number = last.number; last.term == 0 {
			return errors.New("the cluster has no leader")
		}
		return nil
	})
	return number
}

// followers are the numbers of the other nodes.
func (c *cluster) followers() (numbers []int) {
	c.t.Helper()
	leader := c.leader()
	for i := range c.nodes {
		if i != leader {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// raftStatus is what a node thinks of itself.
type raftStatus struct {
	State   string
	Term    int
	Pending int `json:"fsm_pending"`
}

func (c *cluster) raft(i int) (raftStatus, error) {
	_, body, err := c.ask(i, "/status", "")
	if err != nil {
		return raftStatus{}, err
	}
	var status struct{ Store struct{ Raft raftStatus } }
	err = json.Unmarshal([]byte(body), &status)
	return status.Store.Raft, err
}

// What services say to nodes that are secured. The password has characters that
// an address must escape.
const (
	rqliteUser     = "petstore"
	rqlitePassword = "a%2Fb%3Ac%40d" //nolint:gosec // nobody else ever sees these nodes
)

// security is what an operator lays down beside a node: certificates for both of
// its ports, and a password.
type security struct {
	authority, certificate, key string // files
	users                       string // likewise
	names                       string // of all nodes
}

// found makes an authority. Its key stands beside it.
func (s *security) found(t *testing.T, authority string) {
	t.Helper()
	tool(t, "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
		"/CN=authority", "-keyout", authority+".key", "-out", authority)
}

// certify gives the nodes a certificate of an authority, in the place of the one that they have.
func (s *security) certify(t *testing.T, authority string) {
	t.Helper()
	tool(t, "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
		"/CN=node", "-addext", "basicConstraints=critical,CA:FALSE",
		"-addext", "subjectAltName="+s.names, "-CA", authority, "-CAkey", authority+".key",
		"-keyout", s.key, "-out", s.certificate)
}

func (s *security) flags() []string {
	return []string{"-auth", s.users, "-join-as", rqliteUser, "-http-cert", s.certificate,
		"-http-key", s.key,
		"-node-cert", s.certificate, "-node-key", s.key, "-node-ca-cert", s.authority,
		"-node-verify-client"}
}

// secured has all nodes ask for a password over HTTPS, and for certificates of
// each other. The programs that the test starts trust their authority.
func secured(c *cluster) {
	c.t.Helper()
	folder := c.t.TempDir()
	s := &security{
		authority: filepath.Join(folder, "ca.pem"), certificate: filepath.Join(folder, "node.pem"),
		key: filepath.Join(folder, "node-key.pem"), users: filepath.Join(folder, "users.json"),
	}
	var names []string
	for _, n := range c.nodes {
		names = append(names, "IP:"+n.address)
	}
	s.names = strings.Join(names, ",")
	s.found(c.t, s.authority)
	s.certify(c.t, s.authority)
	users := fmt.Sprintf(`[{"username": %q, "password": "a/b:c@d", "perms": ["all"]}]`, rqliteUser)
	noError(c.t, os.WriteFile(s.users, []byte(users), 0o600))
	authority, err := os.ReadFile(s.authority)
	noError(c.t, err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	c.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}
	c.security = s
	c.t.Setenv("SSL_CERT_FILE", s.authority)
}

// serve starts a service on the cluster, on an address that it keeps for life.
func (c *cluster) serve(flags ...string) *server {
	c.t.Helper()
	s := &server{t: c.t, db: c.addresses(), serves: c.program, commands: c.program}
	s.run(append([]string{"-addr", ownAddress(c.t)}, flags...)...)
	return s
}

// again starts a service that was killed or stopped, on the address that it had.
func (s *server) again(flags ...string) {
	s.t.Helper()
	s.run(append([]string{"-addr", strings.TrimPrefix(s.address(), "http://")}, flags...)...)
}

// ownAddress is a loopback address that nobody else takes while its owner is
// dead: connections come from 127.0.0.1, and other tests listen there.
func ownAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(250),
		rand.IntN(256), 1+rand.IntN(250)))
	noError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}
