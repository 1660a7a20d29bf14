// Folders of states: which are kept, which the newest is, and who may save there.
#define BOOST_TEST_MODULE state_root
#include <boost/test/unit_test.hpp>

#include <megacpp/hf/model_folder.hpp>
#include <megacpp/states/find_saved.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <scratch.hpp>

#include "state_tests.hpp"

using namespace mc;
using namespace test;
using namespace test::states;

BOOST_AUTO_TEST_CASE(the_last_states_are_kept) {
  const scratch_folder dir;
  const trained<gpt> model(small);
  const auto steps = [&] { return saved_steps(model_folder(dir / "root")); };
  const auto are = [&](std::vector<std::int64_t> expected) {
    BOOST_TEST(steps() == expected, boost::test_tools::per_element());
  };
  {
    state_root root(dir / "root");
    for (std::int64_t step = 1; step <= 5; ++step) model.save(root, step, 3);
    are({5, 4, 3});
    write_text(dir / "root/iter_0000003/notes.txt", "mine"); // never removed
    model.save(root, 6, 2);
    are({6, 5, 3});
    BOOST_TEST(root.save(7, 2,
                         [&](folder_writer& out) {
                           write_state(out, model.view(), model.stores, {7, 7}, json::object());
                         })
                   .size() == 1u);
    are({7, 6, 3});
    for (std::int64_t step = 8; step <= 9; ++step) model.save(root, step, 0); // all
    are({9, 8, 7, 6, 3});
    BOOST_TEST(read_text(dir / "root/latest_checkpointed_iteration.txt") == "9\n");
  }
  // A damaged state is not one of those that are kept, and goes when it is old enough.
  write_text(dir / "root/iter_0000009/config.json", "x");
  state_root root(dir / "root");
  root.skip({9});
  BOOST_TEST((root.newest() == 8));
  model.save(root, 10, 2);
  are({10, 9, 8, 3});
  model.save(root, 11, 2);
  are({11, 10, 3});
  // A damaged state of the same step is replaced.
  write_text(dir / "root/iter_0000011/config.json", "x");
  BOOST_TEST(newest_step(dir / "root") == 10);
  model.save(root, 11, 2);
  BOOST_TEST(newest_step(dir / "root") == 11);
}

BOOST_AUTO_TEST_CASE(a_model_under_the_name_of_a_state_is_none) {
  const scratch_folder dir;
  const trained<gpt> model(small);
  const std::string path = dir / "root", exported = path + "/iter_0000003";
  const auto rehearse = [](const state_root& root, std::int64_t last) {
    root.rehearse(last, 1, 0, [](folder_writer&) {});
  };
  {
    state_root root(path);
    model.save(root, 1);
    model.save(root, 2);
  }
  fs::copy(path + "/iter_0000002", exported);
  for (const char* file : {state_file_name, optimizer_file_name}) fs::remove(exported + '/' + file);
  const auto found = find_saved(path, true);
  BOOST_REQUIRE(found);
  BOOST_TEST((found->damaged.empty() && found->notes.empty()));
  state_root root(path);
  BOOST_TEST((root.newest() == 2));
  // A run that would come to its step is refused at its start.
  rehearse(root, 2);
  CHECK_REFUSED(rehearse(root, 3), exit_code::output, "is a model, not a state");
  CHECK_REFUSED(model.save(root, 3), exit_code::output, "is a model, not a state");
  model.save(root, 4, 2);
  model.save(root, 5, 1);
  BOOST_TEST(saved_steps(model_folder(path)) == std::vector<std::int64_t>{5},
             boost::test_tools::per_element());
  BOOST_TEST(fs::exists(exported + "/model.safetensors"));
}

BOOST_AUTO_TEST_CASE(the_best_state_is_a_state_that_is_never_pruned) {
  const scratch_folder dir;
  const trained<gpt> model(small);
  const std::string path = dir / "root", best = path + "/best";
  const auto save_best = [&](state_root& root, std::int64_t step, double loss) {
    root.save_best({step, loss, "text"}, [&](folder_writer& out) {
      write_state(out, model.view(), model.stores, {step, 4 * step},
                  {{"validation", {{"loss", loss}, {"tokens", 8}}}});
    });
  };
  {
    state_root root(path);
    save_best(root, 2, 3.5);
    BOOST_TEST(is_state_root(model_folder(path)));
    BOOST_TEST(newest_step(path) == 2);
    for (std::int64_t step = 3; step <= 5; ++step) model.save(root, step, 1);
    BOOST_TEST((root.best() && root.best()->step == 2 && root.newest() == 5));
    BOOST_TEST((root.has(5) && !root.has(4) && !root.has(2)));
    BOOST_TEST(find_saved(best, true)->state->state().field<std::int64_t>("step") == 2);
    save_best(root, 6, 3.25);
    BOOST_TEST((root.newest() == 6 && !root.has(6)));
  }
  // What another process finds.
  BOOST_TEST(newest_step(path) == 6);
  {
    const state_root root(path);
    BOOST_REQUIRE(root.best().has_value());
    BOOST_TEST((root.best()->step == 6 && root.best()->loss == 3.25));
    BOOST_TEST((root.newest() == 6));
  }
  BOOST_TEST(find_saved(best, true)->state->state().field<std::int64_t>("step") == 6);
  // A kill between the renames of a file system that cannot exchange leaves the one before.
  fs::rename(best, best + ".megacpp-old-123");
  { BOOST_TEST(state_root(path).best()->step == 6); }
  // Damage that its sizes do not tell makes no step of it a damaged one.
  const std::string moments = read_text(best + "/optimizer.safetensors");
  write_text(best + "/optimizer.safetensors", moments.substr(0, moments.size() - 1) + '~');
  const auto another = newest_state(model_folder(path), [](const std::string&) { return true; });
  BOOST_TEST(
      (another->state->state().field<std::int64_t>("step") == 5 && another->damaged.empty()));
  BOOST_TEST(another->notes.size() == 1u);
  {
    const state_root root(path);
    BOOST_TEST((!root.best() && root.newest() == 5));
    BOOST_TEST(root.fault_of_best().find(best + "/optimizer.safetensors is damaged") == 0);
  }
  write_text(best + "/optimizer.safetensors", "x");
  BOOST_TEST(newest_step(path) == 5);
  const auto found = newest_state(model_folder(path), [](const std::string&) { return false; });
  BOOST_REQUIRE(found->notes.size() == 1u);
  BOOST_TEST(
      (found->notes[0].find("the best state cannot be used") == 0 && found->damaged.empty()));
  state_root root(path);
  BOOST_TEST((!root.best() && root.newest() == 5));
  save_best(root, 7, 9);
  BOOST_TEST(newest_step(path) == 7);
  // What is not a state is left alone, and told at the start of a run that would replace it.
  const auto rehearse = [&](std::int64_t bests) {
    root.rehearse(
        8, 1, 0, [](folder_writer&) {}, bests);
  };
  rehearse(1);
  for (const char* file : {state_file_name, optimizer_file_name}) fs::remove(best + '/' + file);
  rehearse(0);
  CHECK_REFUSED(rehearse(1), exit_code::output, "best is a model, not a state");
  CHECK_REFUSED(save_best(root, 8, 1), exit_code::output, "best is a model, not a state");
  fs::rename(best, dir / "elsewhere");
  fs::create_directory_symlink(dir / "elsewhere", best);
  CHECK_REFUSED(rehearse(1), exit_code::output, "best is a symbolic link");
}

// From when it is saved anew.
BOOST_AUTO_TEST_CASE(a_best_state_need_not_say_how_many_tokens_its_loss_is_of) {
  const scratch_folder dir;
  const trained<gpt> model(small);
  const std::string path = dir / "root";
  {
    state_root root(path);
    root.save_best({2, 3.5, ""}, [&](folder_writer& out) {
      write_state(out, model.view(), model.stores, {2, 8}, {{"validation", {{"loss", 3.5}}}});
    });
  }
  BOOST_TEST(newest_step(path) == 2);
  const state_root root(path);
  BOOST_REQUIRE(root.best().has_value());
  BOOST_TEST((root.best()->loss == 3.5 && root.best()->tokens == 0));
}

BOOST_AUTO_TEST_CASE(a_damaged_step_counts_once_it_is_whole) {
  const two_states s;
  write_text(s.newer + "/config.json", "x");
  state_root root(s.root);
  root.skip({2});
  s.model.save(root, 2);
  BOOST_TEST((root.newest() == 2));
  s.model.save(root, 3, 2);
  BOOST_TEST(saved_steps(model_folder(s.root)) == (std::vector<std::int64_t>{3, 2}),
             boost::test_tools::per_element());
}

// A run that goes on from before them may reach them again, days later.
BOOST_AUTO_TEST_CASE(damaged_states_that_cannot_be_replaced_are_told_at_the_start) {
  const two_states s;
  state_root root(s.root);
  root.skip({2});
  const auto rehearse = [&] {
    root.rehearse(7, 1, 0, [](folder_writer& out) { out.write("config.json", "{}"); });
  };
  BOOST_CHECK_NO_THROW(rehearse());
  write_text(s.newer + "/notes.txt", "mine");
  CHECK_REFUSED(rehearse(), exit_code::output, "iter_0000002 holds notes.txt");
  fs::rename(s.newer, s.dir / "elsewhere");
  fs::create_directory_symlink(s.dir / "elsewhere", s.newer);
  CHECK_REFUSED(rehearse(), exit_code::output, "iter_0000002 is a symbolic link");
}

// Whoever moves a state to a larger disk leaves a link. While that disk is not there, the state may
// be whole.
BOOST_AUTO_TEST_CASE(states_behind_links_are_read) {
  const two_states s;
  const std::string away = s.dir / "elsewhere", gone = away + "-gone";
  const auto may_be_whole = [&] {
    CHECK_REFUSED(newest_step(s.root), exit_code::model,
                  "is a symbolic link, and leads to no folder");
    CHECK_REFUSED(newest_step(s.root), exit_code::model, "no older one takes its place");
  };
  fs::rename(s.newer, away);
  fs::create_directory_symlink(away, s.newer);
  BOOST_TEST(newest_step(s.root) == 2);
  fs::rename(away, gone);
  may_be_whole();
  write_text(away, "a file");
  may_be_whole();
  fs::remove(away);
  fs::create_symlink(s.newer, away); // a loop
  may_be_whole();
  fs::remove(away);
  fs::rename(gone, away);
  {
    state_root root(s.root); // nothing is removed through it
    const auto notes = root.save(3, 1, [&](folder_writer& out) {
      write_state(out, s.model.view(), s.model.stores, {3, 3}, json::object());
    });
    BOOST_REQUIRE(notes.size() == 1u);
    BOOST_TEST(notes[0].find("iter_0000002 is kept: ") != std::string::npos, notes[0]);
  }
  BOOST_TEST(fs::exists(away + '/' + state_file_name));
  // The best state likewise.
  fs::rename(away, gone);
  fs::remove(s.newer);
  fs::create_directory_symlink(away, s.root + "/best");
  CHECK_REFUSED(newest_step(s.root), exit_code::model, "the best state may be whole");
  CHECK_REFUSED(state_root(s.root), exit_code::model, "nothing is saved beside it");
}

BOOST_AUTO_TEST_CASE(a_state_that_cannot_be_removed_is_told) {
  const scratch_folder dir;
  BOOST_REQUIRE(::chmod(dir.path().c_str(), 0777) == 0);
  const trained<gpt> model(small);
  const test::unprivileged nobody;
  state_root root(dir / "root");
  model.save(root, 1);
  fs::permissions(root.folder_of(1), fs::perms(0555));
  const auto notes = root.save(2, 1, [&](folder_writer& out) {
    write_state(out, model.view(), model.stores, {2, 8}, json::object());
  });
  BOOST_TEST(notes == std::vector<std::string>{root.folder_of(1) + " is kept: Permission denied"},
             boost::test_tools::per_element());
  BOOST_TEST(saved_steps(model_folder(dir / "root")) == (std::vector<std::int64_t>{2, 1}),
             boost::test_tools::per_element());
  fs::permissions(root.folder_of(1), fs::perms(0755));
  model.save(root, 3, 1);
  BOOST_TEST(saved_steps(model_folder(dir / "root")) == (std::vector<std::int64_t>{3}),
             boost::test_tools::per_element());
}

// What is at the path by now may be another run's.
BOOST_AUTO_TEST_CASE(a_root_that_is_removed_or_replaced_is_claimed_again) {
  const scratch_folder dir;
  const trained<gpt> model(small);
  const auto steps = [&](const char* name) { return saved_steps(model_folder(dir / name)); };
  state_root root(dir / "root");
  model.save(root, 1);
  fs::rename(dir / "root", dir / "away");
  BOOST_TEST(!root.in_place());
  {
    const state_root other(dir / "root");
    CHECK_REFUSED(model.save(root, 2), exit_code::output, "another run is saving");
    BOOST_TEST(!root.in_place());
  }
  model.save(root, 2);
  BOOST_TEST(root.in_place());
  CHECK_REFUSED(state_root(dir / "root"), exit_code::output, "another run is saving");
  state_root other(dir / "away"); // nobody's any more
  model.save(other, 3);
  fs::rename(dir / "root", dir / "first");
  fs::create_directory_symlink("away", dir / "root");
  CHECK_REFUSED(model.save(root, 4), exit_code::output, "another run is saving");
  fs::remove(dir / "root");
  fs::create_directory(dir / "root");
  fs::copy(dir / "away", dir / "root", fs::copy_options::recursive);
  CHECK_REFUSED(model.save(root, 4), exit_code::output, "holds the state of step 3");
  BOOST_TEST(steps("root") == (std::vector<std::int64_t>{3, 1}), boost::test_tools::per_element());
  BOOST_TEST(steps("away") == (std::vector<std::int64_t>{3, 1}), boost::test_tools::per_element());
  BOOST_TEST(steps("first") == (std::vector<std::int64_t>{2}), boost::test_tools::per_element());
}

// Which steps are damaged was known of the one before.
BOOST_AUTO_TEST_CASE(a_root_in_the_place_of_another_has_states_of_its_own) {
  const two_states s;
  state_root root(s.root);
  root.skip({2});
  fs::rename(s.root, s.dir / "away");
  fs::create_directory(s.root);
  fs::rename(s.dir / "away/iter_0000002", s.newer);
  CHECK_REFUSED(s.model.save(root, 3), exit_code::output, "holds the state of step 2");
}

BOOST_AUTO_TEST_CASE(a_root_that_cannot_be_made_is_told) {
  const scratch_folder dir;
  fs::create_directory_symlink("none", dir / "link");
  CHECK_REFUSED(state_root(dir / "link"), exit_code::output,
                "a symbolic link to a folder that is not");
  CHECK_REFUSED(state_root("/dev/fd/777"), exit_code::output, "cannot create /dev/fd/777: No such");
}

BOOST_AUTO_TEST_CASE(a_root_is_one_runs) {
  const scratch_folder dir;
  const trained<gpt> model(small);
  {
    const state_root root(dir / "root");
    CHECK_REFUSED(state_root(dir / "root"), exit_code::output, "another run is saving");
  }
  BOOST_TEST(!fs::exists(dir / "root")); // for nothing was saved
  // What killed runs leave goes; what is not theirs stays.
  fs::create_directories(dir / "root/iter_0000007.megacpp-tmp-123");
  write_text(dir / "root/iter_0000007.megacpp-tmp-123/optimizer.safetensors", "half");
  write_text(dir / "root/latest_checkpointed_iteration.txt.megacpp-tmp-123", "7");
  const std::vector<std::string> mine = {"iter_0000005.old-1", "iter_0000005.old-best",
                                         "iter_0000006.tmp-1",
                                         "latest_checkpointed_iteration.txt.tmp-1", "notes.tmp-1"};
  for (const std::string& name : mine) {
    if (!name.starts_with("iter")) write_text(dir / "root/" + name, "mine");
    else fs::create_directory(dir / "root/" + name);
  }
  BOOST_TEST(!find_saved(dir / "root", true)); // a root, without a state
  { const state_root root(dir / "root"); }
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(dir / "root"))
    left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  BOOST_TEST(left == mine, boost::test_tools::per_element());
  save_model_folder(dir / "model", model.view(), model.stores);
  CHECK_REFUSED(state_root(dir / "model"), exit_code::output, "it is a model");
  write_text(dir / "file", "x");
  CHECK_REFUSED(state_root(dir / "file"), exit_code::output, "is not a folder");
  CHECK_REFUSED(state_root(""), exit_code::output, "empty name");
}
