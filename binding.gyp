{
  "targets": [
    {
      "target_name": "library",
      "type": "none",
      "actions": [
        {
          "action_name": "build",
          "message": "Building libsandbox.so",
          "inputs": [
            "capi/build.sh",
            "go.mod",
            "<!@(find capi core -name '*.go' ! -name '*_test.go' -o -name '*.[chSs]')",
          ],
          "outputs": ["<(PRODUCT_DIR)/libsandbox.so"],
          # prebuildify takes what lies in build/artifacts along.
          "action": ["sh", "capi/build.sh", "<@(_outputs)", "<(target_arch)", "build/artifacts"],
        },
      ],
    },
    {
      "target_name": "sandbox",
      "dependencies": ["library"],
      "sources": ["src/addon.cc"],
      "include_dirs": ["<!(node -p \"require('node-addon-api').include_dir\")"],
      "defines": [
        "NAPI_VERSION=9",
        "NAPI_DISABLE_CPP_EXCEPTIONS",
        "NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS",
      ],
      "cflags_cc": [
        "-std=c++20", "-Wall", "-Wextra", "-Werror",
        "-fno-exceptions", "-fvisibility=hidden",
      ],
      # Node unloads an addon with its last environment: with it would go the
      # knowledge that the library is there, and code that Go may call.
      "ldflags": ["-Wl,-z,nodelete"],
      "libraries": ["-ldl"],
    },
  ],
}
