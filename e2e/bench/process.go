//go:build linux

package main

// Processes: the service and all others that are measured, and wrk, which loads them.

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
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// The server has one core, and wrk the other.
var serverCore = []string{"taskset", "-c", "0"}

const wrkCore = "1"

// build builds the service as it is released, and the ceiling alike.
func (b *bench) build() {
	b.petstore = filepath.Join(b.work, "petstore")
	b.ceiling = filepath.Join(b.work, "ceiling")
	goBuild("..", b.petstore, ".")
	goBuild(".", b.ceiling, "./bench/ceiling")
}

func goBuild(folder, program, pkg string) {
	program = must1(filepath.Abs(program))
	command("env", "CGO_ENABLED=0", "go", "build", "-C", folder,
		"-ldflags=-s -w", "-o", program, pkg)
}

// command runs a program to its end, and returns what it has printed.
func command(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		fail("%s %v: %w\n%s", name, args, err, exit.Stderr)
	}
	must(err)
	return strings.TrimSpace(string(out))
}

// server is a process to which requests go.
type server struct {
	cmd      *exec.Cmd
	log      string // the file of what it prints
	address  string
	auth     string  // what stands in Authorization
	db       string  // its database, if it has one
	answered float64 // requests that wrk has sent
	mayFail  bool    // responses may be errors
	debug    *server // its debug address, where commits are counted
	tls      bool
}

// start starts a program. What is set around us does not reach it, and it is killed when we end.
func (s *server) start(b *bench, env []string, args ...string) {
	log := must1(os.CreateTemp(b.work, "*.log"))
	defer log.Close()
	path := "PATH=" + os.Getenv("PATH")
	home := "HOME=" + b.work
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(env, path, home)
	cmd.Stdout = log
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(cmd.Start())
	s.cmd = cmd
	s.log = log.Name()
}

func (s *server) output() string { return string(must1(os.ReadFile(s.log))) }

// await returns when the server responds to a request without an error of its own.
func (s *server) await(request string) {
	for start := time.Now(); time.Since(start) < time.Minute; {
		a, err := s.exchange(request)
		if err == nil && a.Status < 500 {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
	fail("%v is not ready after a minute:\n%s", s.cmd.Args, s.output())
}

func (s *server) kill() {
	must(s.cmd.Process.Kill())
	_ = s.cmd.Wait() // says that it was killed
}

// stop ends a server as an operator would.
func (s *server) stop() error {
	must(s.cmd.Process.Signal(syscall.SIGTERM))
	return s.cmd.Wait()
}

// discard ends the service and removes its database. No statuses show an error where some are
// expected, but the log does.
func (s *server) discard() {
	must(s.stop())
	if text := s.output(); strings.Contains(text, `"level":"ERROR"`) {
		fail("the service has logged an error:\n%s", text)
	}
	remove(s.db)
}

func (s *server) url() string {
	if s.tls {
		return "https://" + s.address
	}
	return "http://" + s.address
}

func freeAddress() string {
	l := must1(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	return l.Addr().String()
}

// serve starts the service and waits for its first response. prefix is a command that becomes it.
func (b *bench) serve(db, key string, prefix, env []string, flags ...string) *server {
	s := &server{
		address: freeAddress(),
		auth:    "Bearer " + key,
		db:      db,
	}
	service := []string{b.petstore, "-addr", s.address, "-log", "json", "-db", db}
	args := slices.Concat(prefix, service, flags)
	s.start(b, env, args...)
	s.await(s.get(list))
	return s
}

// fresh is the service on its core, and on a copy of a database.
func (b *bench) fresh(d *database, flags ...string) *server {
	return b.serve(b.copy(d.path), d.key, serverCore, nil, flags...)
}

// Requests, as they go over the wire.
const (
	list   = "/v1/pets"
	newPet = `{"name":"Rex","categoryId":7,"status":"available"}`
)

func (s *server) get(path string) string { return s.head("GET", path) + "\r\n" }

func (s *server) add() string { return s.send("POST", list, newPet) }

func (s *server) send(method, path, body string) string {
	const format = "%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
	head := s.head(method, path)
	return fmt.Sprintf(format, head, len(body), body)
}

func (s *server) head(method, path string) string {
	const format = "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: %s\r\n"
	return fmt.Sprintf(format, method, path, s.address, s.auth)
}

// answer is a response. The ceiling reads it too.
type answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// exchange sends a request over a connection of its own and reads the response.
func (s *server) exchange(request string) (*answer, error) {
	conn, err := net.DialTimeout("tcp", s.address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return exchange(conn, request)
}

func exchange(conn net.Conn, request string) (*answer, error) {
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return &answer{response.StatusCode, response.Header, body}, err
}

// ask sends a request that must succeed.
func (s *server) ask(request string) *answer {
	a := must1(s.exchange(request))
	if a.Status > 299 {
		fail("%s\nis answered %d: %s\n%s", request, a.Status, a.Body, s.output())
	}
	return a
}

// figures are what was measured, by unit.
type figures map[string]float64

// measure loads a server with wrk, and reads what its process has used meanwhile.
func (b *bench) measure(s *server, script string, connections int) figures {
	if !b.quick {
		b.load(s, script, connections, 1) // until the heap has grown, and caches are full
	}
	return b.load(s, script, connections, b.rounds)
}

// load is measure without the second before. A response that is an error ends the program, unless
// the server may send some: a refusal is cheaper, and would make it look fast.
func (b *bench) load(s *server, script string, connections, seconds int) figures {
	before := cpuTime(s.cmd)
	committed := s.commits()
	f := must1(b.wrk(s, script, connections, seconds))
	used := cpuTime(s.cmd) - before
	if f["failed"] > 0 && !s.mayFail {
		a := must1(s.exchange(s.get(list)))
		fail("%.0f responses are errors; the list is now %s\n%s", f["failed"], a.Body, s.output())
	}
	f["CPU-µs"] = used * 1e6 / f["requests"]
	f["rss-MiB"], f["peak-MiB"] = resident(s.cmd)
	if s.debug != nil {
		f["adds/commit"] = f["requests"] / (s.commits() - committed)
	}
	return f
}

// target is a server with what it is asked, a script of wrk.
type target struct {
	*server
	script string
}

// inTurns loads servers for a second each, in rounds, because the speed of a shared machine changes
// within seconds. It returns the figures of each server, by rounds, without those of the first
// round, until which heaps grow and caches fill.
func (b *bench) inTurns(connections int, targets ...target) [][]figures {
	warm := 1
	if b.quick {
		warm = 0
	}
	all := make([][]figures, len(targets))
	for round := range warm + b.rounds {
		for turn := range targets { // each goes first at some time
			i := (round + turn) % len(targets)
			f := b.load(targets[i].server, targets[i].script, connections, 1)
			if round >= warm {
				all[i] = append(all[i], f)
			}
		}
	}
	return all
}

// compare sets the ratio of a unit in each round.
func compare(unit string, ours, theirs []figures) {
	for i := range ours {
		ours[i]["ratio"] = ours[i][unit] / theirs[i][unit]
	}
}

func cpuTime(cmd *exec.Cmd) float64 {
	proc := must1(procfs.NewProc(cmd.Process.Pid))
	return must1(proc.Stat()).CPUTime()
}

// resident is how much memory a process has, in MiB, and has had at the most.
func resident(cmd *exec.Cmd) (now, peak float64) {
	const mib = 1 << 20
	proc := must1(procfs.NewProc(cmd.Process.Pid))
	status := must1(proc.NewStatus())
	now = float64(status.VmRSS) / mib
	peak = float64(status.VmHWM) / mib
	return now, peak
}

// random starts each script. Each time the seed is another: the same random ids again would be in
// the caches.
const random = `
math.randomseed(%d)
local random = math.random
function done(summary, latency)
  local e = summary.errors
  io.write(string.format("RESULT %%d %%d %%d %%d %%d %%d\n", summary.requests, summary.duration,
    e.connect + e.read + e.write + e.timeout, e.status,
    latency:percentile(50), latency:percentile(99)))
end
`

// wrk loads a server. script is Lua that says what it sends.
func (b *bench) wrk(s *server, script string, connections, seconds int) (figures, error) {
	now := time.Now().UnixNano()
	file := filepath.Join(b.work, fmt.Sprintf("%d.lua", now))
	prelude := fmt.Sprintf(random, now%1e9)
	write(file, []byte(prelude+script))
	defer os.Remove(file)
	cmd := exec.Command("taskset", "-c", wrkCore,
		"wrk", "--latency", "--timeout", "10s", "-t1",
		"-c", strconv.Itoa(connections),
		"-d", fmt.Sprint(seconds, "s"),
		"-s", file,
		s.url())
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("wrk: %w\n%s", err, out)
	}
	_, result, _ := strings.Cut(string(out), "RESULT ")
	var requests, micros, broken, failed, p50, p99 float64
	must1(fmt.Sscan(result, &requests, &micros, &broken, &failed, &p50, &p99))
	if requests == 0 || broken > 0 && !s.mayFail {
		return nil, fmt.Errorf("%.0f responses, %.0f broken\n%s", requests, broken, out)
	}
	s.answered += requests
	return figures{
		"requests": requests,
		"failed":   failed + broken,
		"req/s":    requests / micros * 1e6,
		"p50-ms":   p50 / 1000,
		"p99-ms":   p99 / 1000,
	}, nil
}

// h2load loads a server with a list over HTTP/2, ten requests at a time on each connection.
func (b *bench) h2load(s *server, connections, seconds int) figures {
	out := command("taskset", "-c", wrkCore,
		"h2load", "-t1", "-m10",
		"-c", strconv.Itoa(connections),
		"-D", strconv.Itoa(seconds),
		"-H", "Authorization: "+s.auth,
		s.url()+list)
	found := regexp.MustCompile(`, ([0-9.]+) req/s`).FindStringSubmatch(out)
	if found == nil || !strings.Contains(out, " 0 failed, 0 errored, 0 timeout") ||
		!strings.Contains(out, " 0 3xx, 0 4xx, 0 5xx") {
		fail("h2load gets errors:\n%s", out)
	}
	_, peak := resident(s.cmd)
	return figures{
		"req/s":    must1(strconv.ParseFloat(found[1], 64)),
		"peak-MiB": peak,
	}
}

// always is a script that sends one request over and over.
func always(request string) string {
	const lua = "function wrk.format() return %q end"
	return fmt.Sprintf(lua, request)
}

// vary puts a random number from least to most in the place of {id}.
func vary(request string, least, most int) string {
	before, after, _ := strings.Cut(request, "{id}")
	const lua = "function request() return %q .. random(%d, %d) .. %q end"
	return fmt.Sprintf(lua, before, least, most, after)
}

// mix is 10 % adds, 40 % lists, and half fetches of random ids, in turns of 20.
func (s *server) mix(pets int) string {
	const lua = `
local fetch = request
local i = 0
function request()
  i = (i + 1) %% 20
  if i %% 10 == 0 then return %q end
  if i %% 2 == 0 then return %q end
  return fetch()
end`
	fetch := vary(s.get(list+"/{id}"), 1, pets)
	return fetch + fmt.Sprintf(lua, s.add(), s.get(list))
}

// follow is clients that each go from page to page, from different places, until the last page, and
// then begin again. Ids have no gaps.
func (s *server) follow(pets, limit, clients int) string {
	path := fmt.Sprintf("%s?limit=%d&after={id}", list, limit)
	before, after, _ := strings.Cut(s.get(path), "{id}")
	const lua = `
local pets, limit, clients = %d, %d, %d
local next, i = {}, 0
for client = 1, clients do
  next[client] = math.floor(pets / limit * (client - 1) / clients) * limit
end
function request()
  i = i %% clients + 1
  local from = next[i]
  next[i] = (from + limit) %% pets
  return %q .. string.format("%%d", from) .. %q
end`
	return fmt.Sprintf(lua, pets, limit, clients, before, after)
}

// withKeys lists with any of the keys in a file.
func (s *server) withKeys(file string) string {
	before, after, _ := strings.Cut(s.get(list), s.auth)
	const lua = `
local keys = {}
function init()
  for key in io.lines(%q) do keys[#keys+1] = key end
end
function request()
  return %q .. keys[random(#keys)] .. %q
end`
	before += "Bearer "
	return fmt.Sprintf(lua, file, before, after)
}
