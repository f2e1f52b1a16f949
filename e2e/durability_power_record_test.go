package e2e

// What a program does to its files, as strace sees it, and the disks that a power cut could have
// left meanwhile. The method is that of ALICE (Pillai et al., OSDI 2014) and CrashMonkey (Mohan et
// al., OSDI 2018): what was synced is there; of the rest, anything may be.

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// recordedCalls are the system calls that change files and their names, sync them, or tell somebody
// something.
var recordedCalls = []string{
	"open", "openat", "write", "writev", "pwrite64", "pwritev", "sendto", "copy_file_range",
	"sendfile", "splice", "truncate", "ftruncate", "fallocate", "fsync", "fdatasync",
	"sync_file_range", "link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat",
	"mkdir", "mkdirat", "symlink", "symlinkat",
}

// eventKind is what an event does.
type eventKind int

const (
	nothing       eventKind = iota // a call that has failed
	wrote                          // data into a file, at an offset
	truncated                      // a file to a length, which is the offset
	synced                         // a file
	renamed                        // a name was given to a file, taken away, or both
	syncedFolder                   // all names
	toldSomething                  // data, to a client or on stdout or stderr
)

// event is one thing that the program did.
type event struct {
	kind     eventKind
	file     int // the number of the file; 0 for none
	offset   int64
	data     []byte
	from, to string // names, within the folder; "" for none
	begun    int    // how many events had begun before a sync did: it brings these to disk
	syncedAt int    // the event with which a change is on the disk for sure
}

// fileHistory is what a program did to the files of a folder, in the order in which it began. Files
// have numbers, since their names change.
type fileHistory struct {
	t       *testing.T
	folder  string
	stock   map[string]int // the names at the beginning
	content [][]byte       // of the files with the numbers of stock; file 0 is none
	events  []event

	names map[string]int    // now
	open  map[string]opened // by descriptor
}

// opened is a file of the folder that is open.
type opened struct {
	file     int
	position int64 // for write
}

// record runs a command under strace, and others meanwhile, and returns what it did to the files in
// a folder.
func record(t *testing.T, folder string, cmd *exec.Cmd, meanwhile func(p *process)) *fileHistory {
	t.Helper()
	r := &fileHistory{t: t, folder: folder, stock: map[string]int{}, open: map[string]opened{}}
	r.content = append(r.content, nil)
	for name, content := range files(t, folder) {
		r.stock[name] = len(r.content)
		r.content = append(r.content, []byte(content))
	}
	r.names = maps.Clone(r.stock)
	log := filepath.Join(t.TempDir(), "calls")
	p := launch(t, strace(cmd, log, "-xx", "-s", "1000000", "--seccomp-bpf",
		"-e", "signal=none", "-e", "trace="+strings.Join(recordedCalls, ",")))
	meanwhile(p)
	if p.status() != 0 {
		t.Fatalf("without a power cut: %s", p.told())
	}
	text, err := os.ReadFile(log)
	noError(t, err)
	r.read(string(text))
	r.noteSyncs()
	return r
}

var (
	// straceLine is a call, or a part of one: its thread, its text, and whether there is more.
	straceLine = regexp.MustCompile(
		`^(\d+) +(?:<\.\.\. \w+ resumed>)?(.*?)( <unfinished \.\.\.>)?$`)
	callText   = regexp.MustCompile(`^(\w+)\((.*)\) += (-?\d+|\?)(?:<([^>]*)>)?`)
	hexText    = regexp.MustCompile(`(?:\\x[0-9a-f]{2})+`)
	quotedText = regexp.MustCompile(`"([^"]*)"`)
)

// unhex decodes what strace has written as \x00\x01.
func unhex(text string) string {
	return hexText.ReplaceAllStringFunc(text, func(hex string) string {
		var b strings.Builder
		for digits := range strings.SplitSeq(hex[2:], `\x`) {
			n, _ := strconv.ParseUint(digits, 16, 8)
			b.WriteByte(byte(n))
		}
		return b.String()
	})
}

// read reads the log of strace. A call counts from its first line on; a sync, once it has returned.
func (r *fileHistory) read(log string) {
	type begun struct {
		text string
		at   int
	}
	unfinished := map[string]begun{} // by thread
	for line := range strings.Lines(log) {
		part := straceLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if part == nil {
			r.t.Fatalf("strace has written %q", line)
		}
		thread, text, isOpen := part[1], part[2], part[3] != ""
		call, isRest := unfinished[thread]
		if !isRest {
			call.at = len(r.events)
			r.events = append(r.events, event{})
		}
		call.text += text
		if isOpen {
			unfinished[thread] = call
			continue
		}
		delete(unfinished, thread)
		whole := callText.FindStringSubmatch(call.text)
		if whole == nil {
			continue // the end of the process
		}
		e := r.event(whole[1], whole[2], whole[3], whole[4])
		if e.kind == synced || e.kind == syncedFolder {
			e.begun = call.at
			r.events = append(r.events, e)
		} else {
			r.events[call.at] = e
		}
	}
}

// event is what one call did.
func (r *fileHistory) event(call, args, result, path string) event {
	descriptor, of, _ := strings.Cut(args, "<")
	of, rest, _ := strings.Cut(of, ">")
	of = unhex(of)
	number, _ := strconv.ParseInt(result, 10, 64)
	if number < 0 {
		return event{}
	}
	fields := strings.Split(rest, ", ")
	last, _ := strconv.ParseInt(fields[len(fields)-1], 10, 64)
	var texts []string
	for _, quoted := range quotedText.FindAllStringSubmatch(args, -1) {
		texts = append(texts, unhex(quoted[1]))
	}
	isOurs := r.inFolder(of) != ""
	file := r.open[descriptor]
	switch call {
	case "open", "openat":
		return r.opens(args, result, unhex(path))
	case "write", "pwrite64":
		data := []byte(texts[0])
		if int64(len(data)) < number {
			r.t.Fatalf("strace has cut the data of a call off")
		}
		data = data[:number]
		if !isOurs {
			isPeer := strings.HasPrefix(of, "socket:") || strings.HasPrefix(of, "pipe:")
			if !isPeer {
				return event{}
			}
			return event{kind: toldSomething, data: data}
		}
		at := last
		if call == "write" {
			at = file.position
			file.position += number
			r.open[descriptor] = file
		}
		return event{kind: wrote, file: file.file, offset: at, data: data}
	case "ftruncate":
		if isOurs {
			return event{kind: truncated, file: file.file, offset: last}
		}
	case "fsync", "fdatasync":
		if of == r.folder {
			return event{kind: syncedFolder}
		}
		if isOurs {
			return event{kind: synced, file: file.file}
		}
	case "link", "linkat":
		if to := r.inFolder(texts[len(texts)-1]); to != "" {
			return r.changesNames(event{file: r.names[r.inFolder(texts[0])], to: to})
		}
	case "rename", "renameat", "renameat2":
		from, to := r.inFolder(texts[0]), r.inFolder(texts[len(texts)-1])
		if from != "" {
			return r.changesNames(event{file: r.names[from], from: from, to: to})
		}
	case "unlink", "unlinkat":
		if from := r.inFolder(texts[0]); from != "" {
			return r.changesNames(event{from: from})
		}
	default:
		isNamed := func(text string) bool { return r.inFolder(text) != "" }
		if isOurs || slices.ContainsFunc(texts, isNamed) {
			r.t.Fatalf("nobody knows what %s(%s) does to a disk", call, unhex(args))
		}
	}
	return event{}
}

// inFolder is the name of a file of the folder, or "".
func (r *fileHistory) inFolder(path string) string {
	path = strings.TrimSuffix(path, " (deleted)")
	name, isOurs := strings.CutPrefix(path, r.folder+"/")
	if !isOurs {
		return ""
	}
	return name
}

// opens takes note of a descriptor. A file that was not there is a name more.
func (r *fileHistory) opens(args, descriptor, path string) event {
	name := r.inFolder(path)
	if name == "" {
		return event{}
	}
	file, isThere := r.names[name]
	e := event{}
	if !isThere {
		file = len(r.content)
		r.content = append(r.content, nil)
		e = r.changesNames(event{file: file, to: name})
	} else if strings.Contains(args, "O_TRUNC") {
		e = event{kind: truncated, file: file}
	}
	r.open[descriptor] = opened{file: file}
	return e
}

// changesNames changes the names as an event does.
func (r *fileHistory) changesNames(e event) event {
	e.kind = renamed
	e.applyTo(r.names)
	return e
}

func (e event) applyTo(names map[string]int) {
	if e.from != "" {
		delete(names, e.from)
	}
	if e.to != "" {
		names[e.to] = e.file
	}
}

// told is all that the program had told when it had begun so many events.
func (r *fileHistory) told(cut int) string {
	var b strings.Builder
	for _, e := range r.events[:cut] {
		if e.kind == toldSomething {
			b.Write(e.data)
		}
	}
	return b.String()
}

// choice is which of the changes that were not synced are on the disk.
type choice int

const (
	noneOfThem  choice = iota
	allOfThem          // as after a kill
	firstOfThem        // those up to one of them
	someOfThem         // any of them, in any order
	tornSectors        // any sectors of them
	choices
)

// sectorBytes is what a disk writes whole, or not at all.
const sectorBytes = 512

// disk writes the files that a power cut could have left when the program had begun so many events
// into a folder.
func (r *fileHistory) disk(cut int, which choice, random *rand.Rand, folder string) {
	var kept, pending []event
	for _, e := range r.events[:cut] {
		switch {
		case e.kind != wrote && e.kind != truncated && e.kind != renamed:
		case e.syncedAt < cut:
			kept = append(kept, e)
		default:
			pending = append(pending, e)
		}
	}
	switch which {
	case noneOfThem:
		pending = nil
	case firstOfThem:
		pending = pending[:random.IntN(len(pending)+1)]
	case someOfThem:
		pending = anyOf(pending, random)
		random.Shuffle(len(pending), func(i, j int) {
			pending[i], pending[j] = pending[j], pending[i]
		})
	case tornSectors:
		pending = anyOf(sectors(pending), random)
	}
	names := maps.Clone(r.stock)
	content := make([][]byte, len(r.content))
	for i := range content {
		content[i] = bytes.Clone(r.content[i])
	}
	for _, e := range append(kept, pending...) {
		switch e.kind {
		case renamed:
			e.applyTo(names)
		case truncated:
			content[e.file] = resized(content[e.file], e.offset)
		case wrote:
			end := e.offset + int64(len(e.data))
			if end > int64(len(content[e.file])) {
				content[e.file] = resized(content[e.file], end)
			}
			copy(content[e.file][e.offset:], e.data)
		}
	}
	for name, file := range names {
		data := content[file]
		if strings.HasSuffix(name, "-shm") { // it is memory that processes share
			data = make([]byte, 32<<10*random.IntN(2))
			for i := range data {
				data[i] = byte(random.Uint32())
			}
		}
		noError(r.t, os.WriteFile(filepath.Join(folder, name), data, 0o600))
	}
}

// noteSyncs finds out from which event on each change is on the disk, whatever happens.
func (r *fileHistory) noteSyncs() {
	pending := map[int][]int{} // changes that no sync has reached, by file; those of names at 0
	for i := range r.events {
		e := &r.events[i]
		e.syncedAt = len(r.events)
		file := e.file
		switch e.kind {
		case renamed:
			pending[0] = append(pending[0], i)
			continue
		case wrote, truncated:
			pending[file] = append(pending[file], i)
			continue
		case synced:
		case syncedFolder:
			file = 0
		default:
			continue
		}
		var later []int
		for _, change := range pending[file] {
			if change < e.begun {
				r.events[change].syncedAt = i
			} else {
				later = append(later, change)
			}
		}
		pending[file] = later
	}
}

// anyOf is each event or not, by chance.
func anyOf(events []event, random *rand.Rand) (chosen []event) {
	for _, e := range events {
		if random.IntN(2) == 0 {
			chosen = append(chosen, e)
		}
	}
	return chosen
}

// sectors are the same events, of which each writes one sector at most.
func sectors(events []event) (parts []event) {
	for _, e := range events {
		if e.kind != wrote {
			parts = append(parts, e)
			continue
		}
		for len(e.data) > 0 {
			part := e
			n := min(int64(len(e.data)), sectorBytes-e.offset%sectorBytes)
			part.data = e.data[:n]
			parts = append(parts, part)
			e.data = e.data[n:]
			e.offset += n
		}
	}
	return parts
}

func resized(content []byte, length int64) []byte {
	if length <= int64(len(content)) {
		return content[:length]
	}
	return append(content, make([]byte, length-int64(len(content)))...)
}
