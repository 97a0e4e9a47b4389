// Package store keeps templates and sessions as directories below one cache
// directory:
//
//	sessions/<id>                  a session's workspace
//	homes/<id>                     its home, if it has one beside the workspace
//	templates/<id>                 a template, never changed once it is there
//	templates/<id>.home            its home, likewise
//	metadata/{sessions,templates}/<id>.json
//	metadata/locks/{sessions,templates}/<id>.{key,lease}
//
// A directory under its final name is complete: it is built as .staging-<id>
// beside it and renamed. What is removed is renamed to .trash-<id>-… first. So a
// process may be killed between any two steps: the next call finds the old
// state or the new one, and moves aside what was left half done.
//
// A session's metadata, its network policy among them, are on the disk before it
// has its name, and so is its home. A home that is missing, of a session that was
// made without or by a hand, is made when it is asked for.
//
// Two locks belong to an id. Its key is held by whoever builds, removes or
// describes it; its lease by whoever uses it: shared, or exclusively to remove
// it. The key comes first.
//
// The metadata are a cache of facts about a directory. Without them, or with
// broken ones, a session opens all the same and they are written anew.
//
// What a killed process may leave for good, until it is pruned: trash, stagings
// of ids that nobody asks for again, the metadata of such a session, and temporary
// files among the metadata.
//
// The cache directory is trusted: nothing in a sandbox can reach it, so it goes
// by paths. What is inside a workspace is not trusted, and goes by the
// descriptor that [Workspace.Dir] holds. Which entries are old enough to be
// removed is decided elsewhere.
package store
