package supervise

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGenerationStates_EveryPair(t *testing.T) {
	const s, l, p, e, none = generationStarting, generationLive, generationStopping, generationEnded, generationState(-1)
	events := []generationEvent{eventHello, eventStop, eventGone}
	want := map[generationState][]generationState{
		s: {l, p, e},
		l: {none, p, e},
		p: {p, p, e},
		e: {none, e, e},
	}
	require.Len(t, generationTable, len(want))
	for from, row := range want {
		for i, event := range events {
			to, ok := from.next(event)
			if row[i] == none {
				require.False(t, ok, "%d + %d", from, event)
				require.Equal(t, from, to)
				continue
			}
			require.True(t, ok, "%d + %d", from, event)
			require.Equal(t, row[i], to, "%d + %d", from, event)
		}
	}
}

func TestProcessStates_EveryPair(t *testing.T) {
	const s, r, e, x, none = processStarting, processRunning, processEnding, processExited, processState(-1)
	events := []processEvent{eventStarted, eventFailed, eventKill, eventExited, eventLost}
	want := map[processState][]processState{
		s: {r, x, none, none, x},
		r: {none, none, e, x, x},
		e: {none, none, e, x, x},
		x: {none, none, x, none, x},
	}
	require.Len(t, processTable, len(want))
	for from, row := range want {
		for i, event := range events {
			to, ok := from.next(event)
			if row[i] == none {
				require.False(t, ok, "%d + %d", from, event)
				require.Equal(t, from, to)
				continue
			}
			require.True(t, ok, "%d + %d", from, event)
			require.Equal(t, row[i], to, "%d + %d", from, event)
		}
	}
}
