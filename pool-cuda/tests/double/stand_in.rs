// The double in the place of libcuda: for the tests, and for the examples in the docs.

/// Builds the double, loads it by its path and keeps it; cudarc's own `dlopen` then finds it by its
/// name.
pub(crate) fn stand_in() {
    // SAFETY: the library is ours, and its initialisers do nothing.
    let library = unsafe { libloading::Library::new(built()) }.unwrap();
    std::mem::forget(library);
}

/// How all of it is built under a sanitizer, which wants the standard library with it.
fn sanitized() -> &'static [&'static str] {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    match flags.contains("-Zsanitizer") {
        true => &["-Zbuild-std", "--target", "x86_64-unknown-linux-gnu"],
        false => &[],
    }
}

fn built() -> String {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["build", "--locked", "--package", "cuda-double", "--message-format=json"])
        .args(sanitized())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).unwrap();
    for message in messages.lines() {
        let message: serde_json::Value = serde_json::from_str(message).unwrap();
        let file = message["filenames"][0].as_str().unwrap_or_default();
        if message["target"]["name"] == "cuda_double" && !file.is_empty() {
            return file.to_owned();
        }
    }
    panic!("cargo built no double:\n{messages}");
}
