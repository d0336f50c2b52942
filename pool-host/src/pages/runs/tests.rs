//! Tests of runs, against a naive model with one entry for each page.

use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const MOST: u32 = 3000;

/// A map of so many pages.
fn map(pages: u32) -> Map {
    let tags = Box::leak((0..pages).map(|_| Tag::default()).collect::<Box<[_]>>());
    let links = Box::leak((0..pages).map(|_| Links::default()).collect::<Box<[_]>>());
    Map { tags, links }
}

/// The first pages of a map.
fn part(Map { tags, links }: Map, pages: usize) -> Map {
    Map { tags: &tags[..pages], links: &links[links.len() - pages..] }
}

/// The runs, and a naive map: the state of each page and, for a used page, the first page of its
/// run.
struct Model {
    runs: Runs,
    pages: Vec<(PageState, u32)>,
    used: Vec<(u32, u32)>,
    seed: u64,
    random: StdRng,
}

impl Model {
    fn new(seed: u64) -> Self {
        let map = map(MOST);
        let mut runs = Runs::new();
        let random = StdRng::seed_from_u64(seed);
        runs.extend(part(map, 1000));
        let mut pages = vec![(PageState::Clean, 0); 1000];
        pages[0] = (PageState::Used, 0);
        let mut model = Self { runs, pages, used: Vec::new(), seed, random };
        model.check();
        let more = model.choose(2000);
        model.runs.extend(part(map, 1000 + more as usize));
        model.pages.resize(1000 + more as usize, (PageState::Clean, 0));
        model
    }

    fn choose(&mut self, end: u32) -> u32 {
        self.random.random_range(0..end)
    }

    fn fill(&mut self, first: u32, pages: u32, state: PageState) {
        for page in &mut self.pages[first as usize..(first + pages) as usize] {
            assert_ne!(*page, (state, first), "page {first} twice, seed {}", self.seed);
            *page = (state, if state == PageState::Used { first } else { 0 });
        }
    }

    fn take(&mut self, state: PageState) {
        let (pages, align) = (1 + self.choose(60), 1 << self.choose(4));
        let Some(first) = self.runs.take(pages, align, state) else {
            // The first eight runs of a near list may be too short, but no run of a later list is.
            let enough = 2 * (pages + align);
            assert!(self.longest(state) < enough, "{enough} pages are there");
            return;
        };
        assert_eq!(first % align, 0);
        let taken = &self.pages[first as usize..(first + pages) as usize];
        assert!(taken.iter().all(|page| page.0 == state), "pages that are not free");
        self.fill(first, pages, PageState::Used);
        self.used.push((first, pages));
    }

    /// Takes pages of both states that follow each other.
    fn take_span(&mut self) {
        let (pages, align) = (1 + self.choose(60), 1 << self.choose(4));
        let Some((span, first)) = self.runs.find_span(pages, align) else {
            // Of a few long dirty runs none has enough free pages around it.
            let enough = pages + align;
            assert!(self.longest(PageState::Dirty) < enough, "{enough} pages are there");
            return;
        };
        assert_eq!(first % align, 0);
        let free = &self.pages[span.first as usize..span.end as usize];
        assert!(free.iter().all(|page| page.0 != PageState::Used));
        let range = first as usize..(first + pages) as usize;
        assert!(self.pages[range].iter().any(|page| page.0 == PageState::Dirty), "{span:?}");
        self.runs.take_span(span, first, pages);
        self.fill(first, pages, PageState::Used);
        self.used.push((first, pages));
    }

    fn longest(&self, state: PageState) -> u32 {
        let groups = self.pages.chunk_by(|a, b| a == b);
        let lens = groups.filter(|group| group[0].0 == state).map(<[_]>::len);
        lens.max().and_then(|len| u32::try_from(len).ok()).unwrap_or(0)
    }

    fn free(&mut self) {
        if self.used.is_empty() {
            return;
        }
        let at = self.choose(u32::try_from(self.used.len()).unwrap_or(1)) as usize;
        let (first, pages) = self.used.swap_remove(at);
        assert_eq!(self.runs.at(first), Run::used(first, pages));
        self.fill(first, pages, PageState::Dirty);
        self.runs.release(Run { first, pages, state: PageState::Dirty });
    }

    /// Turns the oldest dirty pages into clean pages, as `Pages::give_back_some` does.
    fn purge(&mut self) {
        let most = self.choose(20);
        let Some((first, pages)) = self.runs.take_oldest(most) else { return };
        assert!(pages <= most);
        self.fill(first, pages, PageState::Used);
        self.fill(first, pages, PageState::Clean);
        self.runs.release(Run { first, pages, state: PageState::Clean });
    }

    /// Checks that the runs match the model.
    fn check(&self) {
        let (mut at, mut dirty, mut last) = (1, 0, PageState::Used);
        while at < self.runs.end() {
            let run = self.runs.at(at);
            assert!(run.state == PageState::Used || run.state != last, "neighbours are joined");
            assert_eq!(self.runs.ending_at(run.end() - 1), run);
            let pages = &self.pages[run.first as usize..run.end() as usize];
            assert!(pages.iter().all(|page| *page == pages[0]), "a run of one sort: {run:?}");
            assert_eq!(pages[0].0, run.state);
            dirty += if run.state == PageState::Dirty { u64::from(run.pages) } else { 0 };
            (at, last) = (run.end(), run.state);
        }
        assert_eq!((at, dirty), (self.runs.end(), self.runs.dirty));
    }
}

#[test]
fn random_runs_are_what_a_naive_map_says() {
    for seed in 1..if cfg!(miri) { 3 } else { 200 } {
        println!("seed {seed}");
        let mut model = Model::new(seed);
        for _ in 0..if cfg!(miri) { 100 } else { 1000 } {
            match model.choose(9) {
                8 => model.take_span(),
                0..=1 => model.take(PageState::Dirty),
                2..=3 => model.take(PageState::Clean),
                4..=6 => model.free(),
                _ => model.purge(),
            }
            if cfg!(miri) || model.choose(10) == 0 {
                model.check();
            }
        }
        while !model.used.is_empty() {
            model.free();
        }
        model.check();
    }
}

#[test]
fn the_oldest_pages_go_first() {
    let map = map(100);
    let mut runs = Runs::new();
    runs.extend(map);
    let taken: Vec<u32> =
        (0..9).map(|_| runs.take(10, 1, PageState::Clean).expect("there is room")).collect();
    // Every second run, so that none coalesce.
    for first in [taken[4], taken[0], taken[2]] {
        runs.release(Run { first, pages: 10, state: PageState::Dirty });
    }
    assert_eq!(runs.take_oldest(4), Some((taken[4] + 6, 4)));
    assert_eq!(runs.take_oldest(100), Some((taken[4], 6)), "what is left of the oldest");
    assert_eq!(runs.take_oldest(100), Some((taken[0], 10)));
    assert_eq!(runs.take_oldest(100), Some((taken[2], 10)));
    assert_eq!((runs.take_oldest(100), runs.dirty), (None, 0));
}

#[test]
fn a_longer_run_is_in_a_later_list() {
    let mut last = 0;
    for pages in (1..5000).chain((13..29).map(|power| 1 << power)) {
        let list = list_of(pages);
        assert!(list >= last, "{pages}");
        assert!(list < LISTS);
        last = list;
    }
    assert!(list_of(8) > list_of(7));
}
