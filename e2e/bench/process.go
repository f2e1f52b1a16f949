//go:build linux

package main

// Processes: the service, the ceiling and wrk, each on its core, and what /proc
// tells about them.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is one that this program has started and will stop.
type process struct {
	cmd   *exec.Cmd
	ready chan string   // gets what matches want in its output
	done  chan struct{} // closed when it has ended
	err   error         // how, after that

	mu   sync.Mutex // guards what follows
	out  []byte
	want *regexp.Regexp
}

func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out = append(p.out, text...); len(p.out) > 1<<20 { // a broken service may log without end
		p.out = slices.Clone(p.out[len(p.out)-1<<16:])
	}
	if p.want != nil {
		if m := p.want.FindSubmatch(p.out); m != nil {
			p.ready <- string(m[1])
			p.want = nil
		}
	}
	return len(text), nil
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.out)
}

// spawn starts a program. want is a regular expression for await, or "".
func (b *bench) spawn(want string, env []string, stdin io.Reader, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(b.ctx, args[0], args[1:]...), ready: make(chan string, 1), done: make(chan struct{})}
	if want != "" {
		p.want = regexp.MustCompile(want)
	}
	// What happens to be set around us must not change what is measured.
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PETSTORE_") || strings.HasPrefix(v, "GOM") || strings.HasPrefix(v, "GOGC=") || strings.HasPrefix(v, "GODEBUG=")
	}), env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, p, p
	p.cmd.WaitDelay = time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // if we are killed ourselves
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	b.running[p] = true
	go func() {
		p.err = p.cmd.Wait()
		b.mu.Lock()
		delete(b.running, p)
		b.mu.Unlock()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// await returns what the process announces when it is ready.
func (p *process) await() (string, error) {
	select {
	case text := <-p.ready:
		return text, nil
	case <-p.done:
		return "", fmt.Errorf("%v has ended (%v):\n%s", p.cmd.Args, p.cmd.ProcessState, p.output())
	case <-time.After(time.Minute):
		return "", fmt.Errorf("%v is not ready after a minute:\n%s", p.cmd.Args, p.output())
	}
}

// end sends a signal and waits; whoever does not heed it is killed.
func (p *process) end(signal os.Signal) {
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.done:
	case <-time.After(15 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// killAll ends what is still running, by pid.
func (b *bench) killAll() {
	b.mu.Lock()
	var left []*process
	for p := range b.running {
		left = append(left, p)
	}
	b.mu.Unlock()
	for _, p := range left {
		p.end(syscall.SIGKILL)
	}
}

// server is where requests go: the service, or one port of the ceiling.
type server struct {
	*process
	address, key, db string
}

// serve starts the service and waits for its first 200 answer. The time is from
// before exec to that answer. prefix is a command that becomes the service.
func (b *bench) serve(db, key string, prefix, env []string, flags ...string) (*server, time.Duration) {
	args := append(slices.Clone(prefix), b.petstore, "-addr", "127.0.0.1:0", "-log", "json", "-db", db)
	start := time.Now()
	p := must1(b.spawn(`"msg":"ready".*"address":"http://([^/"]+)/v1"`, env, nil, append(args, flags...)...))
	s := &server{process: p, address: must1(p.await()), key: key, db: db}
	a := must1(s.fetch("GET", listHot))
	took := time.Since(start)
	if a.Status != 200 {
		fail("the service's first answer is %d: %s", a.Status, a.Body)
	}
	return s, took
}

// fresh is the service on its core and on a throw-away copy of a database.
func (b *bench) fresh(d *database, env []string, flags ...string) *server {
	s, _ := b.serve(b.copy(d), d.key, b.pinned, env, flags...)
	return s
}

// warm lets a new process reach its pace: its heap grows first.
func (s *server) warm() *server {
	conn := must1(net.Dial("tcp", s.address)) //nolint:noctx // to this machine
	defer conn.Close()
	for range 3000 {
		must1(roundTrip(conn, s.request("GET", listHot)))
	}
	return s
}

// stop ends the service as an operator would.
func (s *server) stop() {
	s.end(syscall.SIGTERM)
	if s.err != nil {
		fail("the service ended with %v:\n%s", s.err, s.output())
	}
	if log := s.output(); strings.Contains(log, `"level":"ERROR"`) { // as no statuses show it where errors are expected
		fail("the service has logged an error:\n%s", log)
	}
}

// discard ends it and removes its database.
func (s *server) discard() {
	s.stop()
	remove(s.db)
}

// newPet is the body of every create.
const newPet = `{"name":"Rex","categoryId":7,"status":"available"}`

func (s *server) request(method, path string) string {
	head := method + " " + path + " HTTP/1.1\r\nHost: " + s.address + "\r\nAuthorization: Bearer " + s.key + "\r\n"
	if method == "POST" {
		return head + fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(newPet), newPet)
	}
	return head + "\r\n"
}

// answer is one as it came over the wire, but for Date. ceiling/main.go has the same.
type answer struct {
	Status int
	Header [][2]string
	Body   []byte
}

func (s *server) fetch(method, path string) (*answer, error) {
	conn, err := net.DialTimeout("tcp", s.address, 5*time.Second) //nolint:noctx // it has its own limit
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return roundTrip(conn, s.request(method, path))
}

// roundTrip exists because net/http's client respells the names of headers.
func roundTrip(conn net.Conn, request string) (*answer, error) {
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	a, length, r := &answer{}, 0, bufio.NewReader(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, err
		}
		name, value, isHeader := strings.Cut(strings.TrimSpace(line), ": ")
		switch {
		case a.Status == 0:
			if _, err := fmt.Sscanf(line, "HTTP/1.1 %d", &a.Status); err != nil {
				return nil, fmt.Errorf("%w in %q", err, line)
			}
		case !isHeader:
			slices.SortFunc(a.Header, func(x, y [2]string) int { return strings.Compare(x[0], y[0]) })
			a.Body = make([]byte, length)
			_, err := io.ReadFull(r, a.Body)
			return a, err
		case name != "Date":
			a.Header = append(a.Header, [2]string{name, value})
			if name == "Content-Length" {
				length, _ = strconv.Atoi(value)
			}
		}
	}
}

// exchange sends a whole request and reads the response, in whatever way its length is given.
func (s *server) exchange(request string) (*answer, error) {
	conn, err := net.DialTimeout("tcp", s.address, 5*time.Second) //nolint:noctx // it has its own limit
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return exchangeOn(conn, bufio.NewReader(conn), request)
}

func exchangeOn(conn net.Conn, r *bufio.Reader, request string) (*answer, error) {
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	response, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return &answer{Status: response.StatusCode, Body: body}, err
}

// do sends a request that must succeed, and returns the body of the response.
func do(request *http.Request) []byte {
	response := must1(http.DefaultClient.Do(request)) //nolint:bodyclose // closed below
	defer response.Body.Close()
	body := must1(io.ReadAll(response.Body))
	if response.StatusCode > 299 {
		fail("%s %s: %s\n%s", request.Method, request.URL, response.Status, body)
	}
	return body
}

// warmWith lets a server of another kind reach its pace.
func (s *server) warmWith(request string) {
	conn := must1(net.Dial("tcp", s.address)) //nolint:noctx // to this machine
	defer conn.Close()
	r := bufio.NewReader(conn)
	for i := range 3000 {
		if _, err := exchangeOn(conn, r, request); err != nil {
			fail("%v, request %d: %w\n%s", s.cmd.Args, i+1, err, s.output())
		}
	}
}

// load is what one run of wrk has told, and the server's process meanwhile.
type load struct {
	requests, seconds, perSecond float64
	failed                       float64 // answers with a status above 399
	size                         float64 // bytes an answer, with its head
	p50, p99                     float64 // µs
	cpu, busy                    float64 // µs a request; share of the time in per cent
	rss, peak                    float64 // MiB, just after
	commits                      float64 // transactions of SQLite; only sync sets it
	statuses                     string  // of an audit
}

const prelude = `math.randomseed(%d)
local random = math.random
local head = " HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"
local tail = head .. "\r\n"
local function get(path) return "GET " .. path .. tail end
local pet = '%s'
local create = "POST /v1/pets" .. head .. "Content-Type: application/json\r\nContent-Length: " .. #pet .. "\r\n\r\n" .. pet
local threads = {}
function setup(thread) threads[#threads+1] = thread end
function done(summary, latency)
  local e, known, text = summary.errors, 0, ""
  for _, code in ipairs({%s}) do
    local n = 0
    for _, t in ipairs(threads) do n = n + (t:get("status" .. code) or 0) end
    known, text = known + n, text .. " " .. code .. ":" .. n
  end
  io.write(string.format("RESULT %%d %%d %%d %%d %%d %%d %%d %%d%%s\n", summary.requests, summary.duration, summary.bytes,
    e.connect + e.read + e.write + e.timeout, e.status, latency:percentile(50), latency:percentile(99), known, text))
end
`

// audit counts answers by status. It costs wrk time, so only runs that are not
// measured have it.
const audit = `
function response(status) local name = "status" .. status; _G[name] = (_G[name] or 0) + 1 end
`

// wrk runs wrk against a server; lua says what it sends. With codes given,
// the answers are counted, and must have one of these.
func (b *bench) wrk(s *server, lua string, connections, seconds int, codes ...string) (*load, error) {
	// Another seed each time: the same random ids in each round would be in the caches.
	lua = fmt.Sprintf(prelude, time.Now().UnixNano()%1e9, s.address, s.key, newPet, strings.Join(codes, ",")) + lua
	if len(codes) > 0 {
		lua += audit
	}
	file, err := os.CreateTemp(b.work, "*.lua")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	if _, err := file.WriteString(lua); err != nil {
		return nil, err
	}
	_ = file.Close()
	p, err := b.spawn("", nil, nil, append(slices.Clone(b.pinnedWrk), "wrk", "-t1", "-c", strconv.Itoa(connections),
		"-d", fmt.Sprint(seconds, "s"), "--timeout", "10s", "--latency", "-s", file.Name(), "http://"+s.address)...)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-time.After(time.Duration(seconds+20) * time.Second):
		p.end(syscall.SIGKILL)
		return nil, errors.New("wrk does not end")
	}
	text := p.output()
	_, result, ok := strings.Cut(text, "RESULT ")
	if p.err != nil || !ok {
		return nil, fmt.Errorf("wrk: %v\n%s", p.cmd.ProcessState, text)
	}
	l := &load{}
	var micros, broken, known float64
	if _, err := fmt.Sscan(result, &l.requests, &micros, &l.size, &broken, &l.failed, &l.p50, &l.p99, &known); err != nil {
		return nil, fmt.Errorf("wrk: %w\n%s", err, text)
	}
	l.seconds, l.perSecond, l.size = micros/1e6, l.requests/micros*1e6, l.size/l.requests
	l.statuses = strings.Join(strings.Fields(result)[8:], " ")
	if l.requests == 0 || broken > 0 {
		return nil, fmt.Errorf("%.0f answers and %.0f errors of connections\n%s", l.requests, broken, text)
	}
	if len(codes) > 0 && known != l.requests {
		return nil, fmt.Errorf("of %.0f answers only these have an expected status: %s", l.requests, l.statuses)
	}
	return l, nil
}

// measure is one measurement: wrk, and the server's CPU time meanwhile. An
// answer that is an error ends the whole run, unless errors are expected: a
// refusal is cheaper than an answer, and would make the service look fast.
func (b *bench) measure(s *server, what, lua string, connections, seconds int, expectErrors bool) *load {
	say("%s", what)
	before := cpuTime(s.pid())
	l, err := b.wrk(s, lua, connections, seconds)
	if err != nil {
		fail("%s: %v\n%s", what, err, s.output())
	}
	used := cpuTime(s.pid()) - before
	if l.failed > 0 && !expectErrors {
		text := "nothing"
		if a, err := s.fetch("GET", listHot); err == nil {
			text = fmt.Sprint(a.Status, " ", string(a.Body[:min(len(a.Body), 200)]))
		}
		fail("%s: %.0f of %.0f answers are errors; the list now answers %s", what, l.failed, l.requests, text)
	}
	l.cpu, l.busy = used*1e6/l.requests, 100*used/l.seconds
	l.rss, l.peak = memory(s.pid(), "VmRSS"), memory(s.pid(), "VmHWM")
	return l
}

// cpuTime is user and system time of a process, in seconds (proc_pid_stat(5)).
func cpuTime(pid int) float64 {
	text := string(must1(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))))
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name may hold spaces
	return float64(must1(strconv.Atoi(fields[11]))+must1(strconv.Atoi(fields[12]))) / 100
}

// othersCPU starts to measure how much of the machine's CPU time others use, and returns what tells it in per cent: time
// that other programs use, and that other machines on the same hardware take away. All processes that this
// program has started must have ended by then.
func othersCPU() func() float64 {
	busy := func() (others, all float64) {
		line, _, _ := strings.Cut(string(must1(os.ReadFile("/proc/stat"))), "\n")
		for i, text := range strings.Fields(line)[1:9] { // user, nice, system, idle, iowait, irq, softirq, steal
			v := must1(strconv.ParseFloat(text, 64)) / 100
			all += v
			if i != 3 && i != 4 {
				others += v
			}
		}
		for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
			var own syscall.Rusage
			must(syscall.Getrusage(who, &own))
			others -= time.Duration(own.Utime.Nano() + own.Stime.Nano()).Seconds()
		}
		return others, all
	}
	othersBefore, allBefore := busy()
	return func() float64 {
		others, all := busy()
		return max(0, 100*(others-othersBefore)/(all-allBefore))
	}
}

// memory is a line of /proc/PID/status in MiB.
func memory(pid int, name string) float64 {
	_, text, _ := strings.Cut(string(must1(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))), name+":")
	return float64(must1(strconv.Atoi(strings.Fields(text)[0]))) / 1024
}

// allowedCores are the first two cores that this process may run on, or the only one.
func allowedCores() (cores []string) {
	_, text, _ := strings.Cut(string(must1(os.ReadFile("/proc/self/status"))), "Cpus_allowed_list:")
	for part := range strings.SplitSeq(strings.Fields(text)[0], ",") { // "0-3" or "5"
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		for core := must1(strconv.Atoi(first)); core <= must1(strconv.Atoi(last)) && len(cores) < 2; core++ {
			cores = append(cores, strconv.Itoa(core))
		}
	}
	return cores
}

// memoryBound is a command that becomes another one with so many bytes of
// memory: in a control group of version 2 or 1, or where none may be made with
// a limit on its data. how names which; with a group, dir has to be removed when
// it is empty again, and peak is the file with the most it has used.
func memoryBound(limit int) (command []string, how, dir, peak string) {
	if f, err := os.OpenFile("/sys/fs/cgroup/cgroup.subtree_control", os.O_WRONLY, 0); err == nil { // version 2 only
		_, _ = f.WriteString("+memory")
		_ = f.Close()
	}
	for _, v := range [][4]string{
		{"cgroup v2", "/sys/fs/cgroup", "memory.max", "memory.peak"},
		{"cgroup v1", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"},
	} {
		dir := filepath.Join(v[1], fmt.Sprintf("petstore-bench-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if f, err := os.OpenFile(filepath.Join(dir, v[2]), os.O_WRONLY, 0); err == nil { // the kernel makes it, if it can
			_, err = fmt.Fprint(f, limit)
			if f.Close() == nil && err == nil {
				// The shell joins the group before it becomes the command, so that all is counted.
				return []string{"/bin/sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, dir}, v[0], dir, filepath.Join(dir, v[3])
			}
		}
		_ = os.Remove(dir)
	}
	kib := strconv.Itoa(limit / 1024)
	return []string{"/bin/sh", "-c", `ulimit -d ` + kib + ` && exec "$@"`, "sh"}, "ulimit -d " + kib + " (no memory cgroup may be made here)", "", ""
}
