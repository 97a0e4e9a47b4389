package supervise

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/errdefs"
)

// keptBytes is how much of a stream that nobody reads is kept for a later reader.
const keptBytes = 4 << 20

// keptPatience is how long the command then still waits for one.
const keptPatience = 2 * time.Second

// kept is what was read ahead of a stream for want of a reader.
type kept struct {
	// stop ends the reading ahead, and stopped is closed once it has ended.
	stop    context.CancelFunc
	stopped chan struct{}

	// mu guards the fields below it.
	mu   sync.Mutex
	data []byte
	// lost is set once more than keptBytes came; what did was thrown away.
	lost bool
}

// keep reads the stream ahead until somebody reads it, so that the command need not
// wait for that. It is a no-op when somebody has begun to, or nothing is left to read.
func (s *stream) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seq > 0 || s.file == nil || s.kept != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	s.kept = &kept{stop: stop, stopped: make(chan struct{})}
	go s.kept.fill(ctx, s)
}

// fill ends with the stream, with the first reader, or when there is too much.
func (k *kept) fill(ctx context.Context, s *stream) {
	var err error
	defer close(k.stopped)
	defer k.stop()
	defer errdefs.Recover(&err)
	const chunk = 64 << 10
	for {
		// One byte too many tells that there is more.
		data, err := s.readPipe(ctx, min(chunk, keptBytes+1-len(k.data)), ownRoom)
		if err != nil {
			return
		}
		k.mu.Lock()
		k.data = appendWithin(k.data, data, keptBytes+1)
		full := len(k.data) > keptBytes
		k.mu.Unlock()
		if full {
			k.overflow(ctx, s)
			return
		}
	}
}

// overflow gives the rest of the stream up, unless a reader comes in time.
func (k *kept) overflow(ctx context.Context, s *stream) {
	timer := time.NewTimer(keptPatience)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	k.mu.Lock()
	k.data, k.lost = k.data[:keptBytes], true
	k.mu.Unlock()
	s.discard()
}

// take ends the reading ahead and returns at most limit bytes of what is kept;
// nothing when the rest is still in the stream.
//
// Errors: OutputLimit after the last byte, when more had come than is kept.
func (k *kept) take(limit int) ([]byte, error) {
	k.stop()
	<-k.stopped
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.data) > 0 {
		data := k.data[:min(limit, len(k.data))]
		if k.data = k.data[len(data):]; len(k.data) == 0 {
			k.data = nil
		}
		return data, nil
	}
	if k.lost {
		return nil, errdefs.New(errdefs.OutputLimit, "read", fmt.Sprintf("nobody had read this stream when wait() was called: of its output %d bytes were kept, the rest is lost", keptBytes))
	}
	return nil, nil
}

// drop gives up what is kept.
func (k *kept) drop() {
	k.stop()
	<-k.stopped
	k.mu.Lock()
	defer k.mu.Unlock()
	k.data, k.lost = nil, false
}

// forsake ends the stream for a reader who has lost interest.
func (s *stream) forsake() {
	s.discard()
	s.mu.Lock()
	kept := s.kept
	s.mu.Unlock()
	if kept != nil {
		kept.drop()
	}
}
